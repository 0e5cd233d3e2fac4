// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package db is what sqlc makes of the queries and migrations of platform/store (make
// generate). Only that package uses it.
package db
