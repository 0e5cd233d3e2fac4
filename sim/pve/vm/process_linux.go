// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import "syscall"

// newSysProcAttr returns the attributes that put the child in a process group of its own and make the
// kernel kill the child when the thread that started it ends.
func newSysProcAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
