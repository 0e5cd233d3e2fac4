// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package push brings a plan to a host, part by part, and says of each what became of it.
//
//	FirstBoot: all parts          ┐  stops at the first part   ┐
//	Drift:     parts that drifted ┘  that fails                ┴─► probe ─► Result
//
// A part counts as applied when its script has ended well and, if it is one that is kept,
// when the host's probe finds it afterwards: so nothing is called done that is half done.
package push
