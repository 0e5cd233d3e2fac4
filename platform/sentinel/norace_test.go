// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !race

package sentinel_test

// raceDetector is true if the tests run under the race detector.
const raceDetector = false
