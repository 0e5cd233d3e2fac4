// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package vmtest makes disks that boot, for tests: a guest of one sector that
// reports on its first serial port what it sees of its machine, and is up in a
// moment under software emulation.
package vmtest
