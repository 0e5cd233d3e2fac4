// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package procrun runs child processes. The demo, the test harness and the simulators start all
// programs with it.
//
// Each child has a process group of its own, so that stopping the child also stops the processes
// that it started. The output goes to a file. The child ends with the program that started it, even
// if that program is killed (on Linux, the kernel enforces this). The package also picks ports for
// programs that cannot inherit a socket.
package procrun
