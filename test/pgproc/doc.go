// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pgproc runs a PostgreSQL server on the loopback interface, with the programs that are
// installed on this machine. Tests and demos use it. The stored data does not survive a crash of
// the machine.
package pgproc
