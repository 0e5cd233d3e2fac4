// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package libvirt runs real libvirtd processes for tests, each as one host: with directories, sockets and
// storage pools of its own. The machines of a host are QEMU processes under software emulation.
//
// All test programs of a `make test` share one host (package lease). Without `make test`, each program starts
// its own. A test that stops or fills a host starts its own with Start.
//
// A host runs as an unprivileged user in namespaces of its own if the kernel permits that. Then its QEMU
// processes end with it, as with a power failure. Otherwise Stop ends them.
package libvirt
