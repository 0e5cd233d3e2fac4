// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import "syscall"

// newSysProcAttr puts the child into a process group of its own. The kernel kills the child when the
// thread that started it ends.
func newSysProcAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
