// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package vm

import "syscall"

// newSysProcAttr returns the attributes that put the child in a process group of its own. Systems other
// than Linux cannot kill the child when its parent ends.
func newSysProcAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
