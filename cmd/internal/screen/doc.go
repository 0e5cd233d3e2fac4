// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package screen draws on terminals: tables that fit their width, and frames that replace each
// other without flicker.
package screen
