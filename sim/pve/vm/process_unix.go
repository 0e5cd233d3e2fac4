// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package vm

import "syscall"

// newSysProcAttr puts the child into a process group of its own. Systems other than Linux cannot
// kill the child when its parent ends.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
