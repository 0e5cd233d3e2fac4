// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package recordings holds 3,334 requests and the responses of a real Proxmox VE 9.2
// (testdata/proxmox-ve-9.2), in the order in which they were sent. Its tests send the requests of
// each file to the simulator (package pve) and compare the responses. Each difference is in
// testdata/differences.txt with a reason. That list can only become shorter.
package recordings
