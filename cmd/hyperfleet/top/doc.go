// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package top has the command `hyperfleet top`: a cluster's pools, machines and jobs in a terminal,
// as they are now, with what each waits for.
package top
