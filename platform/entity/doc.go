// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package entity is the registry of kinds: what api/config/platform declares, checked as a
// whole when the program starts, so that a request never meets a registry that makes no
// sense.
//
//	[]platform.Entity ─┬─ New ──► Registry ──► Kind, by kind or by plural
//	OpenAPI document ──┘                         └─ CheckSpec
package entity
