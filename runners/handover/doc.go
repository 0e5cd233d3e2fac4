// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package handover serves the credential that a machine requests with bootstrap method callback. The
// machine authenticates with the claim code from its cloud-init ISO. A machine with attestation has no
// code: it authenticates with its SVID. Both give access to one credential only.
//
//	code offered ──► use recorded ──► credential issued ──► handover recorded
//	   ▲                  │
//	   └──────────────────┘ not issued: the CI platform refused or was unreachable
//
// The handler records the use in the claim's status before it issues the credential. If two requests race,
// optimistic locking lets only one of them record the use. So every replica can serve requests, and a
// machine never gets two credentials. If the handler fails after it has recorded the use, the machine gets
// no credential: the machine fails, and another claim replaces its claim. The handler derives the claim
// code from the operator's key; no object in the cluster stores the code.
//
// Only Handler.authenticate decides whether a caller is the machine.
package handover
