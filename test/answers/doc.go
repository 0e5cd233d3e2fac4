// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package answers has what the client of every CI platform must hold: what a server answers is
// bounded, and credentials go encrypted or not at all.
package answers
