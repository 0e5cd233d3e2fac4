// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package procrun

import "syscall"

// newSysProcAttr returns the attributes that put the child in a process group of its own and make the
// kernel kill the child when the thread that started it ends.
func newSysProcAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// maxRSSBytes returns the peak resident memory in bytes. Linux reports KiB.
func maxRSSBytes(usage *syscall.Rusage) int64 {
	const kib = 1024

	return usage.Maxrss * kib
}
