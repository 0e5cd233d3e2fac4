// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package proxmox runs what we have against a real Proxmox VE, with the account that
// docs/guides/proxmox-permissions.md makes: the conformance cases of every provider; for each of
// its two kinds of grants whole lives with what they cost, and lives in which the operator's
// process is killed at every step; a job from webhook to gone, with the operator's program and a
// machine that boots; three nodes, of which one hangs, one is cut off, and one is removed for
// good; and our simulator beside it, call by call.
//
// `make e2e-proxmox` runs it, and test/realpve says where the Proxmox VE comes from. With
// -short, as `make e2e` runs it, it is a life, the restarts during a clone, the comparison and
// one job.
package proxmox
