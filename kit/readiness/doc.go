// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package readiness puts the condition Ready of objects into the metrics, read out of a cache at
// each scrape.
package readiness
