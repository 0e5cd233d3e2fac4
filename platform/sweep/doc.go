// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package sweep removes objects that outlived their resource: those of a resource that
// was removed from the fleet API by force, without its adapters.
//
//	probe the API ─► find labelled objects ─► verify each one's identity ─► ask the API
//	   │ no sense        (all kinds, pages)       │ not proven: kept           once per id
//	   ▼                                          ▼                               │
//	 stop                                  report says why         200, or no clear answer: kept
//	                                                                              │
//	      delete, with UID and resourceVersion ◄─ within the limits? ◄─ "no such resource"
//	                                                     │ no
//	                                                     ▼
//	                                               nothing is deleted
//
// An object is deleted only if its HMAC proves that an adapter of ours made it for that
// very resource (platform/stamp), and the API answers, well formed, that there is no such
// resource. All doubt ends in keeping it.
package sweep
