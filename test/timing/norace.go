// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !race

package timing

// RaceDetector is true if the tests run under the race detector, with which programs are slower and need more memory.
const RaceDetector = false
