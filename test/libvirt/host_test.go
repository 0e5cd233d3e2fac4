// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/hyperfleet/hyperfleet/test/libvirt"
)

// An ordinary user can start a host, also one whose pool has a file system of its own.
func TestHostOfOrdinaryUser(t *testing.T) {
	t.Parallel()

	if os.Geteuid() != 0 {
		host := libvirt.Start(t, libvirt.Options{PoolSize: 1 << 20})
		if err := host.FillPool(); err != nil {
			t.Fatal(err)
		}

		return
	}

	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}

	// An ordinary user cannot read the folder of the test program.
	copied := filepath.Join(t.TempDir(), "libvirt.test")
	if err := os.WriteFile(copied, program, 0o755); err != nil {
		t.Fatal(err)
	}

	command := exec.CommandContext(t.Context(), "setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups",
		copied, "-test.run", "^"+t.Name()+"$")
	command.Dir = "/"

	if out, err := command.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
