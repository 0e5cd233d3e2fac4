// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package errclass sorts errors by what has to happen next, in the four classes
// of the operator's document (section "Error Handling"): Transient, Permanent,
// Configuration and Resource.
//
// The class travels with the error through wrapping. Whoever reports an error
// (kit/step, kit/metrics) asks Of; whoever makes one uses New or Wrap and names a
// reason, one CamelCase word that ends up in conditions and events.
package errclass
