// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package entity is the registry of the kinds that api/config/platform declares. The program
// validates the whole registry when it starts, so no request is handled with an inconsistent one.
//
//	[]platform.Entity ─┬─ New ──► Registry ──► Kind, by kind or by plural
//	OpenAPI document ──┘                         └─ ValidateSpec
package entity
