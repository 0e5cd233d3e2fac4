// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package exe brings tests the programs that they run: those of this module, built as
// releases have them, and those of Debian packages.
package exe
