// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package errclass classifies errors by what has to happen next. There are four classes: Transient,
// Permanent, Configuration and Resource.
//
// An error keeps its class when it is wrapped. Code that reports errors (kit/step, kit/metrics) calls
// ClassOf. Code that creates errors calls New or Wrap with a reason, one CamelCase word that appears in
// conditions and events.
package errclass
