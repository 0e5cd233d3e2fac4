// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package external connects the operator to hypervisor providers that are programs of their own. It
// is one more hypervisor.Provider, whose methods are calls over gRPC (package providerpb).
//
//	operator ── Connect (stays open: session, wake events) ──► program (package external/server)
//	         ── Reserve, Start, Get ... with the session ────►
//
// The program is not trusted with more than its machines: the provider limits the size and the time
// of each answer, and rejects answers that the rest of the operator could not work with. If the
// program ends, hangs or speaks another version, calls fail at once until it is back, so that its
// cluster delays no other.
package external
