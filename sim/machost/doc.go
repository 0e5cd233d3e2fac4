// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package machost simulates a host that is reached over SSH and that really executes its scripts.
// The host is a Mac or a plain Linux host.
//
//	Host ── SSH server on loopback ──► sudo, bash ──► a disk, processes and a network of its own
//	  │                                                (namespaces, box.go and box/)
//	  └ faults: slow, cut, hang, fail a step, reboot, another key, no sudo, full disk, ...
//
// Programs that belong to the operating system, such as launchctl and pfctl, are shims in box/. A
// shim keeps state and supports only the calls that HyperFleet's scripts make. Any other call ends
// with exit code 127 and is listed by [Host.UnknownCalls], which tests have to check. All other
// programs are the real ones of Linux. A feature that macOS does not have, such as stat -c, is
// missing in the simulated Mac as well.
//
// The disk, the jobs and the machines do not depend on connections. A reboot ends all processes and
// keeps the disk. When the process of the simulator ends, nothing of the host remains.
//
// Limits: each user is in fact root, so the simulator does not find a script that forgets sudo.
// Programs without a shim behave as they do on Linux.
//
// A light host executes nothing. It accepts the scripts of a plan, compares the digests of the
// input, and answers the probe from what it has accepted. A test can start a thousand light hosts.
package machost
