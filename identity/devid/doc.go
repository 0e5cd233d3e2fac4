// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package devid is the authority over the device identities of machines with a TPM: it
// certifies a key that a TPM has made, for the one claim whose machine asked for it.
//
// It sees that the key says of itself that it was made in a TPM and can never leave it. That
// this is so, and in which TPM, is proven to whoever relies on the identity: SPIRE's server
// has the TPM certify the key and checks the TPM's endorsement certificate.
//
// It reads the structures of the TPM 2.0 Library Specification by github.com/google/go-tpm.
package devid
