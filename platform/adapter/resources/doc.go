// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package resources runs the resources phase of an event. It discovers the objects of the task file's
// entries, decides with platform/adapter/gates what to do with each object, and does it.
//
//	discover all ──► per entry, in order:
//	                 gates ──► nothing to write: next entry
//	                   │
//	                   ▼ something to write
//	                 discover live ──► gates again ──► write, bound to that state ──► discover
//	                   ▲                                    │ it has changed: at most 3 times
//	                   └────────────────────────────────────┘
//
// The first decision uses cached reads, so that an event without changes costs the API server nothing. A
// write is decided on live state, and names the UID and the resource version of that state. An older
// event, an outdated cache or another process therefore can't make the write change a different state.
//
// If writing an entry fails, later entries are not written, because they may depend on the failed entry.
// Later entries are still detached and deleted as their gates decide.
package resources
