// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package platform is the area that stores desired state in an API and turns it into objects on
// clusters.
//
//	user ──► api (server, store) ──changes──► sentinel ──events──► broker
//	          ▲      │                                               │
//	          │      └── conditions = f(statuses)                    ▼
//	          └───────────────── statuses ◄──────────────────── adapter ──► objects
//	                                                                          │
//	                           sweep: deletes orphans ◄───────────────────────┘
//
// API, Sentinel, adapters and sweep are separate processes. They only share the API's OpenAPI document
// (api/openapi), the events (api/events), and the ownership labels and annotations of objects
// (platform/stamp).
package platform
