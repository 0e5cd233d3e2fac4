// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package machosttest starts simulated hosts for a test, with keys that log in to them, and
// fails the test when a host is asked for what it does not know.
package machosttest
