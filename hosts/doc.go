// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hosts is the area of long-lived hosts that carry machines: one configuration
// for all, pushed over SSH, and pushed again where it changed or where a host no longer
// is as it was left.
//
//	Config ──render──► Plan: parts in order ──push──► host
//	                     │                              │ probe, part by part
//	                     └─ digests ── compare ◄────────┘
//
// plan/ has the plan and its digests, and below it what each kind of host is made of;
// all of it is pure.
package hosts
