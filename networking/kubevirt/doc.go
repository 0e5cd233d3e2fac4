// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubevirt converts a node pool into an address pool and a machine template, and a machine with its
// addresses into a VirtualMachine of KubeVirt. It is pure: it does no I/O.
//
//	KubevirtNodePool --NewAddressPool-->  address pool
//	        |----------NewMachineSpec-->  machine template
//	KubevirtMachine, addresses --RenderNetworkData--> config drive
//	        |--------------NewVirtualMachine--------> kubevirt.io/v1 VirtualMachine
//
// The package uses unstructured objects for the kinds of KubeVirt, so users can write any field of these
// kinds, also fields of a newer version.
package kubevirt
