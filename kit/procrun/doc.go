// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package procrun runs child processes: the one way in which the demo, the test
// harness and the simulators start programs.
//
// A child has a process group of its own, so that stopping it stops what it
// started; its output goes to a file; and it ends with the program that started
// it, also when that program is killed (on Linux, by the kernel). Ports for
// programs that can't be given a socket are picked here, too.
package procrun
