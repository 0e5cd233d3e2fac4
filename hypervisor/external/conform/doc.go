// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package conform runs the cases of package conformance against a provider that is a program of its
// own. Run is the side of `hyperfleet provider conform`. Register is the side of the program: it adds
// a service, which only tests need, with which the cases prepare the hypervisor and look at it.
package conform
