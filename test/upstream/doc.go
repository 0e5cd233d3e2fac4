// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package upstream runs programs of other projects that validate HyperFleet's objects: MetalLB's
// controller, and KubeVirt's admission webhook for VirtualMachines.
//
//	upstream.StartMetalLB(t, env, "metallb-system")
//	kubevirttest.New(t, env.Config, kubevirt.Options{Webhook: upstream.StartVirtAPI(t)})
//
// hack/setup.sh upstream builds the programs from their Go modules (hack/tools/metallb,
// hack/tools/kubevirt). Some networks do not provide all modules that the programs import. Without MetalLB,
// a test is skipped. Without KubeVirt, only the simulator validates VirtualMachines.
package upstream
