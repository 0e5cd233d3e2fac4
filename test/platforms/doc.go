// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package platforms runs machines of every CI platform: the real bootstrap service with
// the stand-in of each platform's runner, against each platform's simulator.
package platforms
