// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"encoding/binary"
	"fmt"
	"io"
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
	// active are those of file that the kernel would take last. Kubelet counts them into a
	// pod's working set, by which it evicts, and the others not. Below zero: not to be seen.
	active float64
}

// memoryOf looks at a process.
func memoryOf(t *testing.T, pid int) memory {
	t.Helper()

	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}

	out := memory{active: -1}

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

	if pages, err := activePages(pid); err != nil {
		t.Logf("which pages are active is for root to see: %v", err)
	} else {
		out.active = float64(pages*os.Getpagesize()) / (1 << 20)
	}

	return out
}

// activePages counts the pages of a process's files that are on the kernel's list of active
// ones: proc_pid_pagemap(5), and Documentation/admin-guide/mm/pagemap.rst of the kernel.
func activePages(pid int) (int, error) {
	const (
		word    = 8
		present = 1 << 63
		frame   = 1<<55 - 1
		active  = 1 << 6
	)

	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0, err
	}

	table, err := os.Open(fmt.Sprintf("/proc/%d/pagemap", pid))
	if err != nil {
		return 0, err
	}
	defer table.Close()

	flags, err := os.Open("/proc/kpageflags")
	if err != nil {
		return 0, err
	}
	defer flags.Close()

	at := func(file io.ReaderAt, index uint64) (uint64, error) {
		var b [word]byte

		_, err := file.ReadAt(b[:], int64(index*word))

		return binary.NativeEndian.Uint64(b[:]), err
	}
	size, count := uint64(os.Getpagesize()), 0

	for line := range strings.Lines(string(maps)) {
		var from, to uint64
		if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err != nil || !strings.Contains(line, " /") {
			continue
		}

		for page := from / size; page < to/size; page++ {
			entry, err := at(table, page)
			if err != nil {
				return 0, err
			}

			if entry&present == 0 {
				continue
			}

			flag, err := at(flags, entry&frame)
			if err != nil {
				return 0, err
			}

			if flag&active != 0 {
				count++
			}
		}
	}

	return count, nil
}

// tellMemory says what an operator at rest takes, and fails if it is too much.
func (u *user) tellMemory(area string, pid int) {
	u.t.Helper()

	m := memoryOf(u.t, pid)
	u.sayf("%s at rest: %.1f MiB (goal: %d), of which %.1f MiB are its own, and %.1f MiB pages of its program, %.1f MiB of them active",
		area, m.own+m.file, goalMemory, m.own, m.file, m.active)

	if m.own > mostOwn {
		u.t.Errorf("%s has %.1f MiB of its own at rest, %d at most", area, m.own, mostOwn)
	}
}
