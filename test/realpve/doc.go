// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package realpve connects tests to the real Proxmox VE that the environment names. Without PVE_ENDPOINT,
// the tests are skipped.
//
//	func TestMain(m *testing.M) { os.Exit(realpve.Run(m)) }
//
//	site := realpve.GetSite(t)
//	part := site.NewPart(t)
//
// Environment variables:
//
//	PVE_ENDPOINT                              URL, for example https://pve.example.com:8006
//	PVE_CA                                    file with the CA certificate of Proxmox VE
//	PVE_TOKEN_ID, PVE_TOKEN_SECRET            token of the operator, see docs/guides/proxmox-permissions.md
//	PVE_POOL                                  pool of the operator; without a pool, the operator needs its
//	                                          privileges on /vms
//	PVE_ADMIN_TOKEN_ID, PVE_ADMIN_TOKEN_SECRET  token of an administrator, with which tests read the state and make
//	                                          changes without the operator
//	PVE_TEMPLATE                              VMID of a small template with a disk that allows linked clones
//	PVE_SLOW_TEMPLATE                         VMID of a template whose full clone takes at least ten seconds; optional
//	PVE_STORAGE, PVE_ISO_STORAGE, PVE_BRIDGE  storage of disks, storage of cloud-init ISOs, and network bridge
//	PVE_VMID                                  the first of 10,000 VMIDs that nothing else uses; default 810000
//	PVE_ADDRESS                               address of this host for machines on Proxmox VE; optional. If it is
//	                                          set, a test runs a job, and PVE_TEMPLATE must be a template as
//	                                          described in docs/start/demo.md
//
// The tests fail at the start if a machine has one of these VMIDs or an ownership record of a test's
// operator. Such a machine is left over from a run that was killed, or another run is in progress. At the
// end, Run fails if machines, cloud-init ISOs or running tasks of the tests are left.
package realpve
