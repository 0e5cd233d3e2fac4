// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package vm runs one job in a virtual machine that really boots, from the job's webhook to the deletion of
// the machine (make e2e-vm). It runs the operator's program on a real API server, a real SPIRE server, a
// simulated GitHub, and a simulated Proxmox VE whose machines are QEMU processes.
//
// The machine image is built by hack/vm-image. The test measures each phase of the boot by the lines of the
// machine's serial console, with the clock of the test's host. It compares the phases with the same Debian
// without tuning, which it boots in the same run. The console output stays in bin/vm/logs.
package vm
