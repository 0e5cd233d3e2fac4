// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package readiness exports the Ready condition of objects as metrics. It reads the objects from a
// cache at each scrape.
package readiness
