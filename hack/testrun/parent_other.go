// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import "os/exec"

// endWithParent does what can be done: nothing.
func endWithParent(*exec.Cmd) {}
