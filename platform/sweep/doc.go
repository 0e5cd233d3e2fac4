// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package sweep deletes orphans: objects whose resource was removed from the fleet API by a
// forced deletion, without its adapters.
//
//	probe the API ─► list labelled objects ─► verify their identities ────► query the API
//	   │ wrong API       (all kinds, pages)       │ not proven: skip           once per ID
//	   ▼                                          ▼                               │
//	 stop                                report the reason        200 or unclear response: keep
//	                                                                              │
//	      delete, with UID and resourceVersion ◄─ within the limits? ◄─ 404 NTF-001
//	                                                     │ no
//	                                                     ▼
//	                                               nothing is deleted
//
// Sweep deletes an object only if both of these hold: its HMAC proves that an adapter with the
// key created it for the resource in its labels (platform/stamp), and the API returns a well-formed
// response that the resource does not exist. In all other cases sweep does not delete the object.
package sweep
