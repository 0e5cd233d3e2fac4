// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package runners creates one machine for each CI job.
//
//	forge ──webhook──► RunnerJob ──► RunnerPool ──► MachineClaim ──► VM ──► runner ──► job
//	                   demand/       runnerpool/    machineclaim/
//
//	HypervisorCluster ──► hypervisorcluster/     HypervisorMachineTemplate ──► machinetemplate/
//
// This folder only wires the packages together (setup.go):
//
//   - connect/ opens connections to hypervisors and CI platforms from Secrets and settings.
//   - vmspec/ converts templates and claims into the inputs of the hypervisor, cloud-init and guest packages.
//   - guestapi/, handover/, devid/ and report/ serve the HTTP endpoints that machines call.
//   - orphans/ deletes machines, runners, ISOs and identities whose claim is gone.
//   - logstore/ copies runner logs to S3-compatible storage, which objectstore/ writes and reads.
package runners
