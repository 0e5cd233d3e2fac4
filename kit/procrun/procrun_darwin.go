// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package procrun

import "syscall"

// newSysProcAttr returns the attributes that put the child in a process group of its own. Darwin cannot
// kill a child when its parent ends.
func newSysProcAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// maxRSSBytes returns the peak resident memory in bytes. Darwin reports bytes.
func maxRSSBytes(usage *syscall.Rusage) int64 {
	return usage.Maxrss
}
