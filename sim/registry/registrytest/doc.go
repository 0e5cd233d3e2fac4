// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package registrytest serves a simulated registry on loopback, over TLS, for tests.
package registrytest
