// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package push pushes a plan to a host, part by part, and returns the outcome of each part.
//
//	ApplyAll:     all parts          ┐  stops at the first part   ┐
//	ApplyDrifted: parts that drifted ┘  that fails                ┴─► probe ─► Result
//
// A part counts as applied if its script succeeded and, for a hashed part, if the host's probe
// finds the part intact afterwards. So no partial change is reported as applied.
package push
