// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package tpm runs TPMs for tests with swtpm, the emulator that QEMU and Proxmox VE use for the TPMs of
// virtual machines. Each TPM has an endorsement certificate of a test's certificate authority.
//
//	authority := tpm.NewAuthority(t)
//	device := authority.NewTPM(t)
//	key, err := devid.Make(device.Path)
//
// hack/packages.txt contains the Debian package. The TPMs are stopped when the test ends.
package tpm
