// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package realpve gives tests a real Proxmox VE: the one that the environment names. Without
// PVE_ENDPOINT the tests are skipped.
//
//	func TestMain(m *testing.M) { os.Exit(realpve.Run(m)) }
//
//	site := realpve.Get(t)
//	part := site.Part(t)
//
// The environment:
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
//	PVE_ADDRESS                               this machine's address as machines there see it; optional. With it a job
//	                                          runs, so that PVE_TEMPLATE is one that docs/start/demo.md tells of
//
// A Proxmox VE with machines in these VMIDs, or with any that carry the tests' operators'
// record, is refused: a run that was killed left them, or another run is under way. At the end
// Run looks whether anything of the tests is left: machines, cloud-init ISOs, running tasks.
package realpve
