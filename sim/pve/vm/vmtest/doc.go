// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package vmtest creates bootable disks for tests. The guest is a single boot sector that reports
// the properties of its machine on its first serial port. It boots in a fraction of a second under
// software emulation.
package vmtest
