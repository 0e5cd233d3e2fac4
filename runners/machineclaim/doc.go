// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package machineclaim brings one machine through its one life.
//
//	          TemplateResolved ──► Placed ──► Provisioned ──► Bootstrapped ──► Finished ──► Retired
//	phase:    Pending                         Provisioning    Bootstrapping    Ready        (claim deletes itself)
//
//	deleted:  Deregistered ──► VMCleanedUp ──► gone
//	phase:    Draining         Terminating
//
// A machine whose template has an attestation has three steps more: IdentityReady before it
// is made, Attested before it is Bootstrapped, and IdentityRemoved once it is gone.
//
// The id of the machine is on record before the hypervisor is asked for it, so that an
// operator that dies at any moment continues with the same machine. A claim's machine
// runs once: one that has stopped or vanished ends its claim.
package machineclaim
