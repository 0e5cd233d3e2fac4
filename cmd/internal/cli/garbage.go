// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"runtime/debug"
)

// SetGCPercent has garbage collected when the heap has grown by so many percent of what is in use,
// unless GOGC says when. Go's own is 100: less spares memory, more spares the processor.
func SetGCPercent(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}
