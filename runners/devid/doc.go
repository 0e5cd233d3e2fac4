// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package devid certifies the device identity of a machine that attests by its TPM, when it
// asks for that with a code on its cloud-init ISO:
//
//	asked ──► key on record ──► certified ──► asked again: the same certificate
//	                │
//	                └── another key: refused
//
// The key is on record before it is certified, by a write that only one of two callers can
// win, so that any replica may answer, and a claim has one device identity in its life. What
// is certified is worth nothing without the TPM that the key is in: who relies on it, SPIRE's
// server, has that proven.
package devid
