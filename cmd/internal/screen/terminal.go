// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package screen

import (
	"os"

	"golang.org/x/term"
)

// Control sequences of terminals (ECMA-48 and DEC private modes): hide and show the cursor, hold
// drawing until a whole frame is there, erase to the end of line and of screen, go to the upper
// left corner, enter and leave the other screen, swap the colours of a text.
const (
	HideCursor = "\x1b[?25l"
	ShowCursor = "\x1b[?25h"
	HoldFrame  = "\x1b[?2026h"
	ShowFrame  = "\x1b[?2026l"
	EraseLine  = "\x1b[K"
	EraseBelow = "\x1b[J"
	Home       = "\x1b[H"
	OtherOn    = "\x1b[?1049h"
	OtherOff   = "\x1b[?1049l"
	Reverse    = "\x1b[7m"
	Bold       = "\x1b[1m"
	Plain      = "\x1b[0m"
)

// IsTerminal says whether a file is a terminal that obeys control sequences.
func IsTerminal(file *os.File) bool {
	return os.Getenv("TERM") != "dumb" && term.IsTerminal(int(file.Fd()))
}

// Size of a terminal, in columns and lines.
func Size(file *os.File) (width, height int) {
	width, height, err := term.GetSize(int(file.Fd()))
	if err != nil || width <= 0 || height <= 0 {
		return 80, 24
	}

	return width, height
}
