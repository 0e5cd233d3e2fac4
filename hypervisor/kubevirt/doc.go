// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubevirt is the hypervisor.Provider for KubeVirt. Its machines are VirtualMachines in one
// namespace of a Kubernetes cluster.
//
//	VirtualMachine, Halted ──► cloud-init Secret ──► Once ──► Manual ──► off
//	(ownership in the same     (holds a credential;  (starts  (nothing starts
//	 call; Ensure ends here)    owned by the VM)      it)      it again)
//
// KubeVirt has no numeric ids. The provider chooses a machine's id from vmIdRange by the UID of its
// claim. The name of the machine consists of the claim's name and the id. Because the API server
// allows only one object per name, a claim cannot have two machines with the same id. See
// docs/adr/0015-machines-of-kubevirt.md.
//
// The provider starts a machine by setting runStrategy to Once. This needs no subresource and no
// permission other than `patch` on virtualmachines. With Once, KubeVirt creates a new instance if
// the old one is lost. So that a machine runs only once, the provider sets the strategy to Manual
// as soon as the instance exists.
//
// KubeVirt presents the cloud-init Secret to the guest as a disk with the label cidata. The provider
// removes the data from the Secret once the guest runs. It does not delete the Secret, because
// KubeVirt mounts the Secret again if the machine migrates to another node. KubeVirt copies the
// content of the disk from the old node.
package kubevirt
