// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package example is the smallest complete hypervisor.Provider. Its machines are entries in
// memory. It is the example for docs/guides/write-a-provider.md and passes the conformance suite.
// No release contains it.
//
// cloud.go simulates the hypervisor and stands for a vendor's API. provider.go is the provider,
// which is the part that you write for a new hypervisor. lab.go prepares the hypervisor for the
// conformance suite and looks at it. Folder program makes a program of the three.
package example
