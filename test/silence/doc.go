// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package silence has servers that accept connections and never answer, proxies that stop answering, and a
// measurement of how long a program takes to end beside them.
package silence
