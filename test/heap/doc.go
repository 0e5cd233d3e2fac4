// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package heap has tests look at what is left in memory.
package heap
