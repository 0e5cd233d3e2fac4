// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package devid is the certificate authority for the device identities of machines with a TPM. It
// issues a certificate for a key that a TPM has created. The certificate is valid for the one claim
// whose machine requested it.
//
// The package checks that the attributes of the key claim that a TPM created the key and that the key
// can never leave that TPM. It does not verify this claim or which TPM holds the key. The relying party
// has to do that. SPIRE's server makes the TPM certify the key and checks the TPM's endorsement
// certificate.
//
// The package decodes the structures of the TPM 2.0 Library Specification by
// github.com/google/go-tpm.
package devid
