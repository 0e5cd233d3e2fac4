// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubevirt is the hypervisor.Provider for KubeVirt: machines are VirtualMachines
// in one namespace of a Kubernetes cluster.
//
//	VirtualMachine, Halted ──► cloud-init Secret ──► Once ──► Manual ──► off
//	(ownership in the same     (credential inside;   (starts  (nothing
//	 call; Ensure ends here)    owned by the VM)      it)      starts it again)
//
// KubeVirt has no ids. A machine's id is a number out of vmIdRange, chosen by its claim's
// uid, and the machine's name is the claim's name and the id, so that the API server's
// rule of one object per name makes two machines of one claim impossible. See
// docs/adr/0015-machines-of-kubevirt.md.
//
// A machine is started by runStrategy Once, which needs no subresource and no more than
// `patch` on virtualmachines. KubeVirt makes an instance again under Once if the old one
// is lost, so the strategy becomes Manual as soon as the instance is there: a machine
// runs once.
//
// The cloud-init Secret is one that KubeVirt shows the guest as a disk labelled cidata. It is
// emptied when the guest runs, and not deleted: KubeVirt mounts it again when the machine
// moves to another node, and copies the disk itself from the old one.
package kubevirt
