// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package objects lists objects: all of a kind, page by page, and those that an event about
// another object concerns.
package objects
