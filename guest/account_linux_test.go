// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestAccount runs a program as another user, as the service runs jobs.
func TestAccount(t *testing.T) {
	t.Parallel()

	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}

	const other = 65534

	a := &account{uid: other, gid: other, groups: []uint32{other}, home: "/nonexistent"}
	dir := t.TempDir()

	for _, name := range []string{"a", "b"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}

	if err := os.Symlink("/etc/hostname", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}

	before, err := os.Stat("/etc/hostname")
	if err != nil {
		t.Fatal(err)
	}

	if err := a.chown(dir); err != nil {
		t.Fatal(err)
	}

	after, err := os.Stat("/etc/hostname")
	if err != nil || after.Sys().(*syscall.Stat_t).Uid != before.Sys().(*syscall.Stat_t).Uid {
		t.Errorf("the owner of a link's target was changed (%v)", err)
	}

	cmd := exec.Command("sh", "-c", "id -u; id -g; id -G; echo $HOME $USER")
	cmd.Env = []string{"PATH=/usr/bin:/bin"}
	a.applyTo(cmd)

	out, err := cmd.Output()
	if want := "65534 65534 65534 /nonexistent runner"; err != nil || strings.Join(strings.Fields(string(out)), " ") != want {
		t.Errorf("%v, %q, want %q", err, out, want)
	}

	info, err := os.Stat(filepath.Join(dir, "b"))
	if err != nil || info.Sys().(*syscall.Stat_t).Uid != other {
		t.Errorf("the owner of b was not changed (%v)", err)
	}
}
