// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"strings"
	"sync"
	"unicode"
)

// tail keeps the last whole lines of an output, at most limit bytes.
type tail struct {
	limit int

	mu     sync.Mutex
	buffer []byte
}

// add adds one line. It removes colours and control characters, which do not belong in a report.
func (t *tail) add(line string) {
	line = strings.Map(func(r rune) rune {
		if r != '\t' && unicode.IsControl(r) {
			return -1
		}

		return r
	}, stripANSI(line))

	t.mu.Lock()
	defer t.mu.Unlock()

	t.buffer = append(append(t.buffer, line...), '\n')
	if len(t.buffer) > 2*t.limit { // cut at twice the limit, so that most lines cause no copy
		t.buffer = append(t.buffer[:0], t.lastLines()...)
	}
}

// lastLines returns the last whole lines that fit in the limit.
func (t *tail) lastLines() []byte {
	if len(t.buffer) <= t.limit {
		return t.buffer
	}

	start := len(t.buffer) - t.limit
	if t.buffer[start-1] == '\n' { // a line begins exactly at start
		return t.buffer[start:]
	}

	_, rest, _ := bytes.Cut(t.buffer[start:], []byte("\n"))

	return rest
}

func (t *tail) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()

	return string(t.lastLines())
}
