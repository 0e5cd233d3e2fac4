// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package shards records in the Lease of an operator which namespaces the operator serves, so that other programs
// can check that no namespace is served twice, and none by nobody.
package shards
