// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package httpcall makes the HTTP calls of task files (api_call): to the fleet API, with
// its token, and to other servers, without it; tried again a bounded number of times,
// with answers of a bounded size.
package httpcall
