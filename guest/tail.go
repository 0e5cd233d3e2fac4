// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"strings"
	"sync"
	"unicode"
)

// tail keeps the end of what was written, in whole lines, at most limit bytes.
type tail struct {
	limit int

	mu   sync.Mutex
	kept []byte
}

// add takes one line. Colours and control characters are for screens, not for a report.
func (t *tail) add(line string) {
	line = strings.Map(func(r rune) rune {
		if r != '\t' && unicode.IsControl(r) {
			return -1
		}

		return r
	}, plain(line))

	t.mu.Lock()
	defer t.mu.Unlock()

	t.kept = append(append(t.kept, line...), '\n')
	if len(t.kept) > 2*t.limit { // seldom, so that a line costs little
		t.kept = append(t.kept[:0], t.cut()...)
	}
}

// cut gives the last lines that the limit has room for.
func (t *tail) cut() []byte {
	if len(t.kept) <= t.limit {
		return t.kept
	}

	from := len(t.kept) - t.limit
	if t.kept[from-1] == '\n' { // a line begins right there
		return t.kept[from:]
	}

	_, rest, _ := bytes.Cut(t.kept[from:], []byte("\n"))

	return rest
}

func (t *tail) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()

	return string(t.cut())
}
