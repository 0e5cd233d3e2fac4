// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import "os/exec"

// killWithParent does nothing, because only Linux can kill a child process with its parent.
func killWithParent(*exec.Cmd) {}
