// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package procrun

import "syscall"

// ownGroup puts the child in a process group of its own and has the kernel end it
// with the thread that started it.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// maxRSSBytes returns the peak resident memory; Linux counts in KiB.
func maxRSSBytes(usage *syscall.Rusage) int64 {
	const kib = 1024

	return usage.Maxrss * kib
}
