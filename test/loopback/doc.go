// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package loopback chooses free loopback addresses for programs that tests start and that cannot inherit a
// socket, and folders for Unix sockets. A server in the test's own process should listen on port 0 instead.
package loopback
