// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ssh runs scripts at hosts, as root, over SSH.
//
//	Dialer ── Dial(Target) ──► Conn ── Run(Script) ──► Output, or an Error that says
//	             │                        │             whether the host or the script is at fault
//	             └ host key: pinned,      └ sudo, bash -s: the script on standard input,
//	               or certified             nothing but a label and a time in arguments
//
// A script runs under a guard (guard.sh) that ends it with all that it has started when
// its time is up, whether or not the connection is still there, and that ends what an
// earlier connection has left running: so one script runs at a host at a time.
//
// Nothing is repeated here but reaching the host: whether a script may run again, and
// when, is for those who count its failures.
package ssh
