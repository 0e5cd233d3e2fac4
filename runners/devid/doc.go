// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package devid signs the device identity (DevID) certificate of a machine that attests with its TPM. The
// machine authenticates its request with a code from its cloud-init ISO:
//
//	request ──► key recorded ──► certificate signed ──► repeated request: the same certificate
//	                │
//	                └── request with another key: refused
//
// The handler records the key in the claim's status before it signs the certificate. If two requests race,
// optimistic locking lets only one of them record its key. So every replica can serve requests, and a claim
// never has more than one device identity. The certificate is useless without the TPM that holds the key:
// the SPIRE server requires a proof of possession.
package devid
