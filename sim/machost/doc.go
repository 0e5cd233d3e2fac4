// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package machost is a host that is reached over SSH and really runs what it is given: a
// Mac, or a plain Linux host.
//
//	Host ── SSH server on loopback ──► sudo, bash ──► a disk, processes and a network of its own
//	  │                                                (namespaces, box.go and box/)
//	  └ faults: slow, cut, hang, fail a step, reboot, another key, no sudo, full disk, ...
//
// What scripts call that belongs to the system, such as launchctl and pfctl, is a program
// under box/ that keeps state and knows what is called here, no more: another call ends
// with 127 and is in [Host.Unknown], where tests have to look. All else is the real
// program. Where macOS has no such program, such as stat -c, there is none either.
//
// The disk, the jobs and machines live on over connections; a reboot ends all processes
// and keeps the disk. Nothing of a host is left when its process ends.
//
// What it does not do: every user is root in fact, so that who forgets sudo is not found
// out; programs are those of Linux where no shim says otherwise.
//
// A light host runs nothing: it takes the scripts of a plan, checks the digests of what it
// is given, and answers the probe by them. A thousand fit into a test.
package machost
