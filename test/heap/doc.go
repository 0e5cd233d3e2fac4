// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package heap lets tests check for memory leaks.
package heap
