// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package screen draws on terminals. It has tables that fit the width of the terminal, and control
// sequences to replace a frame without flicker.
package screen
