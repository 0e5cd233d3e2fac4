// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package crdgate waits for kinds of other projects, whose CustomResourceDefinitions may be
// installed after the operator: what needs them stays off until they are there, says so
// once, and then starts by itself.
package crdgate
