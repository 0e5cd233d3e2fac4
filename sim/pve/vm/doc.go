// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package vm runs virtual machines as QEMU processes. Their disks are qcow2 images, and their serial
// console is a stream. QMP reports their power state, and the QEMU guest agent reports the state of
// the guest.
//
// The package does not depend on the API that creates the machines. Package pve converts a VM's
// configuration to a [Spec].
//
// The control sockets are socket pairs that QEMU inherits. They have no path, so a path can't be too
// long, and no other process can connect. On Linux, QEMU ends with the process that started it, even
// if that process is killed.
//
// The protocols are defined by QEMU (QMP: docs/interop/qmp-spec; guest agent:
// docs/interop/qemu-ga-ref). Each client in this package has about a hundred lines. The existing
// libraries require a socket in the file system.
package vm
