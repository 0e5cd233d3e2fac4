// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package procrun

import "syscall"

// ownGroup puts the child in a process group of its own. The kernel has no means to
// end it with its parent.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// maxRSSBytes returns the peak resident memory; Darwin counts in bytes.
func maxRSSBytes(usage *syscall.Rusage) int64 {
	return usage.Maxrss
}
