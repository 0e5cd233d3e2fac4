// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package access holds the roles of the platform's samples (deploy/samples/platform) to
// what their programs do, on an API server that authorises by RBAC: under its role an
// adapter, and sweep, lives through all it can meet and is refused nothing; and without
// any one verb of the role it is refused, in words that name the verb and the kind.
//
// It is the home of sweep's other tests too, which need the same servers.
package access
