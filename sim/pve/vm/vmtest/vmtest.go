// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package vmtest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hyperfleet/hyperfleet/sim/pve/vm"
)

// DiskSize is the size of [Disk]'s image in bytes.
const DiskSize = 1 << 20

// Tools are QEMU's programs.
func Tools(t testing.TB) vm.Tools {
	t.Helper()
	tools, err := vm.FindTools()
	if err != nil {
		t.Fatal(err)
	}
	return tools
}

// Disk writes a raw image with the guest on it.
func Disk(t testing.TB, end End) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "guest.raw")
	if err := os.WriteFile(name, BootSector(end), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(name, DiskSize); err != nil {
		t.Fatal(err)
	}
	return name
}
