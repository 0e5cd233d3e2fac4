// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"runtime/debug"
)

// SetGCPercent sets the garbage collection target percentage, unless GOGC is set. The default of Go is 100.
// A lower value uses less memory, and a higher value uses less CPU time.
func SetGCPercent(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}
