// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package access tests the RBAC roles of the platform's samples (deploy/samples/platform) on an API server
// that authorizes by RBAC. With its role, an adapter or sweep runs through all of its cases, and the API
// server forbids no request. If any one verb is removed from the role, the API server forbids a request,
// and the error names the verb and the kind.
//
// The package also contains the other tests of sweep, because they need the same servers.
package access
