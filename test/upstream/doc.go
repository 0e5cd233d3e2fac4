// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package upstream gives tests what other projects judge our objects with, run as they wrote
// it: MetalLB's controller, and KubeVirt's admission of VirtualMachines.
//
//	upstream.MetalLB(t, env, "metallb-system")
//	kubevirttest.New(t, env.Config, kubevirt.Options{Judge: upstream.VirtAPI(t)})
//
// hack/setup.sh upstream makes the programs out of their modules (hack/tools/metallb,
// hack/tools/kubevirt). Not every network has all that they import. Without MetalLB a test is
// skipped; without KubeVirt the simulator judges alone.
package upstream
