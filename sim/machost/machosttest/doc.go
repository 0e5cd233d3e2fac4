// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package machosttest starts simulated hosts for a test and creates keys that log in to them. It
// fails the test if a host has received a call that the simulator does not support.
package machosttest
