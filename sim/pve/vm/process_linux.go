// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import "syscall"

// dieWithParent puts the child in a process group of its own and has the kernel
// end it with the thread that started it.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
