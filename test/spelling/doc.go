// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package spelling holds the names of flags, which are made from names of fields, to the
// way that people write them.
package spelling
