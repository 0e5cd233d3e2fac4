// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package devid creates the key of a machine's device identity in the machine's TPM (IEEE 802.1AR; TCG, TPM
// 2.0 Keys for Device Identity and Attestation). The key has the form that SPIRE's node attestor tpm_devid
// loads: it is a child of the RSA storage root key, stored in two blobs that only this TPM can load.
//
// The package accesses TPMs with github.com/google/go-tpm, which implements the structures of the TPM 2.0
// Library Specification.
package devid
