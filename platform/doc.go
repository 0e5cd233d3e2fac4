// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package platform is the area that turns desired state kept in an API into resources on
// clusters.
//
//	user ──► api (server, store) ──changes──► sentinel ──events──► broker
//	          ▲      │                                               │
//	          │      └── conditions = f(statuses)                    ▼
//	          └───────────────── statuses ◄──────────────────── adapter ──► objects
//	                                                                          │
//	                           sweep: objects whose resource is gone ◄────────┘
//
// Each of api, sentinel, adapter and sweep is a process of its own; they meet through
// the API's contract (api/openapi), events (api/events) and stamped labels
// (platform/stamp) alone.
package platform
