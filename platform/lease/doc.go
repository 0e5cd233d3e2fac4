// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package lease keeps a lease of the fleet API, with which replicas of a program elect a leader.
package lease
