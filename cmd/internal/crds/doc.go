// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package crds compares the CRDs that are built into the program with those that a cluster serves.
package crds
