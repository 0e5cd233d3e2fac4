// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package tpm gives tests real TPMs: swtpm, the emulator that QEMU and Proxmox VE give
// virtual machines their TPM with, each with an endorsement certificate of a certificate
// authority of the test.
//
//	authority := tpm.NewAuthority(t)
//	device := authority.TPM(t)
//	key, err := devid.Make(device.Path)
//
// hack/packages.txt names the Debian package. What was started ends with the test.
package tpm
