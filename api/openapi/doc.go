// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package openapi is the contract of the fleet API: openapi.yaml and the types that are generated from
// it. The base path is /api/hyperfleet/v1.
package openapi
