// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package guestapi is what the operator's endpoints for machines have in common: who asks, how
// often one may, how a refusal is told, so that the bootstrap service of any machine
// understands it and people read of it in the claim's events.
package guestapi
