// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package execguest simulates a guest with a real program, for simulators of hypervisors. A
// directory is the machine's root directory. The package applies the machine's cloud-init ISO to
// that directory and runs the program as the bootstrap service would run it.
package execguest
