// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package crdgate waits for kinds of other projects whose CustomResourceDefinitions may be
// installed after the operator. Controllers that need these kinds are not started until the API
// server serves the kinds. The gate logs once that it waits, and then starts the controllers
// without a restart.
package crdgate
