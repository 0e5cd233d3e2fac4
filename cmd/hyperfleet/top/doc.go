// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package top implements `hyperfleet top`, which shows the pools, machines and jobs of a cluster in the
// terminal, and what each of them waits for.
package top
