// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"runtime/debug"
)

// SetGCPercent sets the garbage collection target percentage, unless GOGC is set. The default of Go is 100.
// A lower value uses less memory, and a higher value uses less CPU time.
func SetGCPercent(percent int) { SetGCPercentUntil(percent) }

// SetGCPercentUntil is SetGCPercent until the returned function is called.
func SetGCPercentUntil(percent int) (restore func()) {
	if os.Getenv("GOGC") != "" {
		return func() {}
	}

	before := debug.SetGCPercent(percent)

	return func() { debug.SetGCPercent(before) }
}
