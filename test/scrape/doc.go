// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package scrape reads metrics of programs and registries for tests.
package scrape
