// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pgproc runs a PostgreSQL server on the loopback interface, out of the
// programs that are installed on this machine. Tests and demos use it: what it stores
// does not survive a crash of the machine.
package pgproc
