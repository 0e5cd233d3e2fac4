// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package screen

import (
	"os"

	"golang.org/x/term"
)

// Control sequences of terminals (ECMA-48 and DEC private modes). They hide and show the cursor, begin and
// end a synchronized update, and erase to the end of the line or of the screen.
const (
	HideCursor = "\x1b[?25l"
	ShowCursor = "\x1b[?25h"
	BeginFrame = "\x1b[?2026h"
	EndFrame   = "\x1b[?2026l"
	EraseLine  = "\x1b[K"
	EraseBelow = "\x1b[J"
)

// IsTerminal reports whether a file is a terminal that supports control sequences.
func IsTerminal(file *os.File) bool {
	return os.Getenv("TERM") != "dumb" && term.IsTerminal(int(file.Fd()))
}

// Size returns the size of a terminal in columns and lines, or 80 and 24 if the size is unknown.
func Size(file *os.File) (width, height int) {
	width, height, err := term.GetSize(int(file.Fd()))
	if err != nil || width <= 0 || height <= 0 {
		return 80, 24
	}

	return width, height
}
