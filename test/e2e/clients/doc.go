// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package clients runs programs of other projects against pvesim: OpenTofu with the Terraform provider of bpg, and the
// program of Telmate's proxmox-api-go. A program that fails, and a call that pvesim does not have, fail the test. Packer's
// own code validates the templates in deploy/proxmox/packer.
//
// `make e2e-clients` builds the programs from their Go modules (hack/setup.sh clients) and runs the tests.
package clients
