// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package vm

import "syscall"

// dieWithParent puts the child in a process group of its own. Other systems
// than Linux cannot end it with its parent.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
