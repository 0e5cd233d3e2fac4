// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package lease lets the test programs of one run share the servers that are slow to start.
// hack/testrun serves leases on a Unix socket that EnvSocket names; a test program asks for a
// server of a kind, and has it until it gives it back or ends, however it ends. Without a
// socket there is nobody to ask, and a program starts its own.
//
// A request and its answer are a line of JSON each, and the connection is the lease.
package lease
