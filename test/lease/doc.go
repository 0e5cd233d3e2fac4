// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package lease lets the test programs of one test run share servers that start slowly. hack/testrun serves
// leases on the Unix socket that EnvSocket names. A test program requests a server of a kind, and has the
// server until the program releases it or ends in any way. If EnvSocket is not set, a program starts its
// own server.
//
// The request and the response are one line of JSON each. The lease lasts as long as the connection.
package lease
