// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package example is the smallest complete hypervisor.Provider: its machines are entries in
// memory. It is read beside docs/guides/write-a-provider.md, passes the conformance suite,
// and is part of no program.
//
// cloud.go is the hypervisor: what a vendor's API would be. provider.go is the provider:
// what you write.
package example
