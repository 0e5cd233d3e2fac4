// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package proxmox runs tests against a real Proxmox VE, with the account that
// docs/guides/proxmox-permissions.md describes. The tests are the conformance cases of every provider, the
// lifecycle of a machine with the number of its API calls, lifecycles in which the operator's process is
// killed at every step, the console of a machine, and a job from its webhook to the deletion of its machine.
// The job runs with the operator's program and a machine that boots.
//
// `make e2e-proxmox` runs the tests on the Proxmox VE that the environment names (test/realpve). Without one,
// all tests are skipped. With -short, as in `make e2e`, the tests are one lifecycle, a console, the restarts
// during a clone, and one job.
package proxmox
