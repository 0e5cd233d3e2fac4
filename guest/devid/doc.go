// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package devid has a machine's TPM make the key of its device identity (IEEE 802.1AR; TCG,
// TPM 2.0 Keys for Device Identity and Attestation), in the form that SPIRE's node attestor
// tpm_devid loads: a child of the RSA storage root key, as two blobs that are worth nothing
// without this very TPM.
//
// It speaks to TPMs by github.com/google/go-tpm, which has the structures of the TPM 2.0
// Library Specification.
package devid
