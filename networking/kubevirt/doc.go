// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubevirt translates: what users wrote of a node pool into a pool of addresses
// and a template of machines, and a machine with its addresses into KubeVirt's own
// VirtualMachine. It is pure.
//
//	KubevirtNodePool --AddressPool-->  pool of addresses
//	        |----------MachineSpec-->  template of machines
//	KubevirtMachine, addresses --NetworkData--> config drive
//	        |--------------VirtualMachine-----> kubevirt.io/v1 VirtualMachine
//
// KubeVirt's kinds are handled as unstructured objects: users may write any field of
// theirs, also those of a newer version.
package kubevirt
