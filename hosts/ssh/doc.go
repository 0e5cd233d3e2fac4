// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ssh runs scripts as root on hosts, over SSH.
//
//	Dialer ── Dial(Target) ──► Conn ── Run(Script) ──► Output, or an Error whose kind tells
//	             │                        │             whether the host or the script failed
//	             └ host key: pinned,      └ sudo, bash -s: the script on standard input,
//	               or certified             only a label and a timeout in arguments
//
// A script runs under a guard (guard.sh). When the script's timeout ends, the guard stops the
// script and everything that it has started, whether or not the connection still exists. The guard
// also stops a script that an earlier connection left running, so only one script runs on a host at
// a time.
//
// This package retries only the connection to the host. The caller, which counts failures, decides
// whether and when a script runs again.
package ssh
