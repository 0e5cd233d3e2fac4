// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package runners is the area that gives every CI job a machine of its own.
//
//	forge ──webhook──► RunnerJob ──► RunnerPool ──► MachineClaim ──► VM ──► runner ──► job
//	                   demand/       runnerpool/    machineclaim/
//
//	HypervisorCluster ──► hypervisorcluster/     HypervisorMachineTemplate ──► machinetemplate/
//
// This file's folder holds the wiring only (setup.go). connect/ turns Secrets and
// settings into live connections; vmspec/ translates what users wrote into what the
// boundaries take; guestapi/, handover/, devid/ and report/ answer machines; orphans/
// removes what belongs to no claim; wake/ brings events from outside the API server.
package runners
