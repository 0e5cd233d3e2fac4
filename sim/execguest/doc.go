// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package execguest plays a guest with a real program, for simulators of hypervisors: a
// directory is the machine's root, cloud-init's part is done to it with the machine's
// cloud-init ISO, and the program runs as the bootstrap service would.
package execguest
