// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package vmtest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hyperfleet/hyperfleet/sim/pve/vm"
)

// DiskSize is the size of the image of [Disk] in bytes.
const DiskSize = 1 << 20

// Tools returns QEMU's programs. The test fails if they are not installed.
func Tools(t testing.TB) vm.Tools {
	t.Helper()
	tools, err := vm.FindTools()
	if err != nil {
		t.Fatal(err)
	}
	return tools
}

// Disk writes a raw image with the guest and returns its path.
func Disk(t testing.TB, behavior Behavior) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "guest.raw")
	if err := os.WriteFile(name, BootSector(behavior), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(name, DiskSize); err != nil {
		t.Fatal(err)
	}
	return name
}
