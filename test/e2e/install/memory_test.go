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
	// goalMemory is the goal for an idle operator, in MiB, including the mapped pages of its program.
	goalMemory = 60
	// maxAnonymous is the limit of anonymous memory in MiB, twice the usual value. File pages have no limit, because
	// the kernel decides how many are mapped and which process they count for.
	maxAnonymous = 24
)

// memory is the resident memory of a process, in MiB.
type memory struct {
	// own is the anonymous memory.
	own float64
	// file is the memory of mapped pages of the program. Linux maps sixteen pages at once, and unmaps them when it
	// needs memory.
	file float64
}

// readMemory reads the memory of a process.
func readMemory(t *testing.T, pid int) memory {
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
		t.Fatalf("no RssAnon or RssFile in\n%s", status)
	}

	return out
}

// reportMemory logs the memory of an idle operator, and fails the test if it exceeds the limit.
func (u *user) reportMemory(area string, pid int) {
	u.t.Helper()

	m := readMemory(u.t, pid)
	u.logf("%s idle: %.1f MiB (goal: %d): %.1f MiB anonymous and %.1f MiB pages of its program",
		area, m.own+m.file, goalMemory, m.own, m.file)

	if m.own > maxAnonymous {
		u.t.Errorf("%s has %.1f MiB of anonymous memory when idle, want at most %d", area, m.own, maxAnonymous)
	}
}
