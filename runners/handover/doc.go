// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package handover gives a machine its credential when it calls for it (bootstrap method
// callback): the machine's cloud-init ISO holds a claim code, which is worth one use. A machine with
// an attestation brings its SVID instead, and has no code; that is worth one use, too.
//
//	code offered ──► used ──► credential made ──► given
//	   ▲              │
//	   └──────────────┘ none was made: the platform refused or was not reached
//
// The use is on record before the credential is made, by a write that only one of two
// callers can win, so that any replica may answer. Whatever breaks off after it, the
// machine ends without a credential and its claim makes way for another: two are never
// given. The code is made out of the operator's key and is held nowhere in the cluster.
//
// Whether a caller is the machine is decided in one place, Handler.prove.
package handover
