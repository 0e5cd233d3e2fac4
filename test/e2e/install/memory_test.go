// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

const (
	// goalMemory of an operator at rest, in MiB, with what is mapped of its program.
	goalMemory = 60
	// mostOwn is twice what it writes for itself. The rest is the kernel's matter: how much of
	// the program is mapped, and counts, depends on who ran it before.
	mostOwn = 24
)

// memory is what a process holds, in MiB.
type memory struct {
	// own is what it wrote: nothing but the process's end gives it back.
	own float64
	// file are the pages of its program that are mapped. Linux maps sixteen for each that is
	// touched, and takes them away again when it needs room.
	file float64
}

// memoryOf looks at a process.
func memoryOf(t *testing.T, pid int) memory {
	t.Helper()

	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}

	var out memory

	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		kib, _ := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 64)

		switch name {
		case "RssAnon":
			out.own = kib / 1024
		case "RssFile":
			out.file = kib / 1024
		}
	}

	if out.own == 0 || out.file == 0 {
		t.Fatalf("no memory is told of in\n%s", status)
	}

	return out
}

// tellMemory says what an operator at rest takes, and fails if it is too much.
func (u *user) tellMemory(area string, pid int) {
	u.t.Helper()

	m := memoryOf(u.t, pid)
	u.sayf("%s at rest: %.1f MiB (goal: %d), of which %.1f MiB are its own, and %.1f MiB pages of its program",
		area, m.own+m.file, goalMemory, m.own, m.file)

	if m.own > mostOwn {
		u.t.Errorf("%s has %.1f MiB of its own at rest, %d at most", area, m.own, mostOwn)
	}
}
