// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package objects lists objects: all objects of a kind, page by page, and the objects that an event
// about another object affects.
package objects
