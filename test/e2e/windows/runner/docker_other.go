// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !windows

package main

// runDocker does nothing: the program is for Windows.
func runDocker() {}
