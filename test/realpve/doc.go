// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package realpve gives tests a real Proxmox VE.
//
//	func TestMain(m *testing.M) { os.Exit(realpve.Run(m)) }
//
//	site := realpve.Get(t)
//	account := site.Account(t, realpve.ByPool)
//
// It is one of two. Without either the tests are skipped and say what is missing.
//
// The one that the environment names, where PVE_ENDPOINT is set:
//
//	PVE_ENDPOINT                              https://pve.example.com:8006
//	PVE_CA                                    file with its certificate authority
//	PVE_TOKEN_ID, PVE_TOKEN_SECRET            the operator's token, as docs/guides/proxmox-permissions.md has it
//	PVE_POOL                                  its pool; without one it has its rights on /vms
//	PVE_ADMIN_TOKEN_ID, PVE_ADMIN_TOKEN_SECRET  an administrator's, to look, and to play the people who interfere
//	PVE_TEMPLATE                              VMID of a small template with a linkable disk
//	PVE_SLOW_TEMPLATE                         VMID of one whose full clone takes ten seconds at least; optional
//	PVE_STORAGE, PVE_ISO_STORAGE, PVE_BRIDGE  where disks, cloud-init ISOs and network cards go
//	PVE_VMID                                  the first of 10,000 VMIDs that nobody else uses; 810000 by default
//
// Or one that a kit brings up for the tests and takes away after them: Proxmox VE's own
// programs in namespaces of this machine. It needs root.
//
//	REALPVE       the kit's folder; by default ../shared/realpve beside the checkout
//	REALPVE_DIR   the box's folder, outside the checkout, kept for the next run; a temporary one by default
//
// A Proxmox VE with machines in these VMIDs, or with any that carry the tests' operators'
// record, is refused: a run that was killed left them, or another run is under way. At the end
// Run looks whether anything of the tests is left: machines, cloud-init ISOs, running tasks.
package realpve
