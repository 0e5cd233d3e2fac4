// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pvetest starts simulated Proxmox VE clusters in tests.
package pvetest
