// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package push pushes a plan to a host, part by part, and returns the outcome of each part.
//
//	all parts (a new host)           ┐  Apply stops at the first  ┐
//	parts that drifted, and those    │  part that fails           ├─► probe ─► Result
//	that they reapply                ┘                            ┘
//
// A part counts as applied if its script succeeded and, for a hashed part, if the host's probe
// finds the part intact afterwards. So no partial change is reported as applied.
package push
