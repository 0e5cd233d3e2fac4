// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package vm runs virtual machines as QEMU processes: their disks are qcow2
// images, their serial console is a stream, QMP follows their power state and
// the QEMU guest agent answers for what is inside.
//
// It knows nothing of the API that asks for the machines; package pve maps a
// VM's configuration to a [Spec].
//
// The control sockets are socket pairs that QEMU inherits, so no path can be
// too long and nobody else can connect. QEMU dies with the process that
// started it, also when that one is killed (on Linux).
//
// The protocols are QEMU's own (QMP: docs/interop/qmp-spec; guest agent:
// docs/interop/qemu-ga-ref). The clients here are a hundred lines each; the
// libraries there are want a socket in the file system.
package vm
