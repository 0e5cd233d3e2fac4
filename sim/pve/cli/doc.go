// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cli is the command line of pvesim, the simulator of Proxmox VE.
package cli
