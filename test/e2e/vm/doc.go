// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package vm runs one job in a virtual machine that really boots, from webhook to gone: the
// operator's program on a real API server, a real SPIRE server, a simulated GitHub, and a
// simulated Proxmox VE whose machines are QEMU processes (make e2e-vm).
//
// The machine image is that of hack/vm-image. Each phase of the boot is timed by what the
// machine writes to its serial console, as the host's clock has it, and compared with the
// same Debian without any tuning, booted in the same run. What the machine wrote stays in
// bin/vm/logs.
package vm
