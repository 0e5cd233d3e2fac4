// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package proxmox runs what we have against a real Proxmox VE, with the account that
// docs/guides/proxmox-permissions.md tells of: the conformance cases of every provider; whole
// lives with what they cost, and lives in which the operator's process is killed at every step;
// and a job from webhook to gone, with the operator's program and a machine that boots.
//
// `make e2e-proxmox` runs it, on the Proxmox VE that the environment names (test/realpve);
// without one each test is skipped. With -short, as `make e2e` runs it, it is a life, the
// restarts during a clone, and one job.
package proxmox
