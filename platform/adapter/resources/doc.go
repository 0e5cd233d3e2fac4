// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package resources is the third phase of an event: it finds the objects of a task file's
// entries, asks platform/adapter/gates what is to be done with each, and does it.
//
//	discover all ──► per entry, in order:
//	                 gates ──► nothing to write: next entry
//	                   │
//	                   ▼ something to write
//	                 discover live ──► gates again ──► write, bound to that state ──► discover
//	                   ▲                                    │ it has changed: at most 3 times
//	                   └────────────────────────────────────┘
//
// Reads for the first decision come out of a cache, so an event that changes nothing
// costs the API server nothing. A write is decided on live state and names the UID and
// resource version it was decided on: an older event, a late cache or another process
// cannot make it hit anything else.
//
// When writing an entry has failed, the entries after it are detached and deleted as
// their gates say, but not written: they may build on the one that failed.
package resources
