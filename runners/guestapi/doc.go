// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package guestapi holds what the operator's HTTP endpoints for machines share: the caller of a request,
// rate limits, and refusals. A refusal is a response that the bootstrap service of every machine can parse,
// and an event on the claim.
package guestapi
