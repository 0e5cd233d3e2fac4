// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package scrape reads metrics of programs that tests run.
package scrape
