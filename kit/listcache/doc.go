// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package listcache caches the lists of other systems that many callers read at the same time.
package listcache
