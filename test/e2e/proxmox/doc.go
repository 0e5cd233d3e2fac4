// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package proxmox runs the Proxmox VE provider against a real Proxmox VE, with the account that
// docs/guides/proxmox-permissions.md makes: the conformance cases of every provider, and for each
// of its two kinds of grants whole lives with what they cost, and lives in which the operator's
// process is killed at every step. `make e2e-proxmox` runs it, and test/realpve says
// where the Proxmox VE comes from.
package proxmox
