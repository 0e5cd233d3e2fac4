// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package machineclaim creates the machine of each MachineClaim, watches it until it has run, and deletes it.
//
//	          TemplateResolved ──► Placed ──► Provisioned ──► Bootstrapped ──► Finished ──► Retired
//	phase:    Pending                         Provisioning    Bootstrapping    Ready        (controller deletes the claim)
//
//	deleted:  Deregistered ──► VMCleanedUp ──► gone
//	phase:    Draining         Terminating
//
// A machine whose template has attestation has three additional steps: IdentityReady before the VM is
// created, Attested before Bootstrapped, and IdentityRemoved after the VM is deleted.
//
// The controller records the ID of the VM in the claim's status before it calls the hypervisor to create
// the VM. So after a crash at any time, the operator continues with the same VM. A machine runs only once:
// if its VM has stopped or vanished, the controller deletes the claim.
package machineclaim
