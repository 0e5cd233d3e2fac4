// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"strings"
	"sync"
)

// maxLine is where a line of the runner's output is cut.
const maxLine = 8 << 10

// lineWriter shows a program's output to a function by lines, without credentials.
type lineWriter struct {
	redact *redactor
	seen   func(line string)

	mu   sync.Mutex
	rest []byte
	skip bool // the line was cut, its rest is dropped
}

// lines logs the runner's output, keeps its end for the last report, and shows each line to
// a function.
func (s *Service) lines(seen func(string)) *lineWriter {
	return s.linesOf(func(text string) {
		s.tail.add(text)

		if text != "" {
			s.log.Info("runner output", "line", text)
		}

		seen(text)
	})
}

// linesOf shows a program's output to a function alone.
func (s *Service) linesOf(seen func(string)) *lineWriter {
	return &lineWriter{redact: &s.redact, seen: seen}
}

func (w *lineWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()

	n := len(p)

	for len(p) > 0 {
		end := bytes.IndexByte(p, '\n')
		if end < 0 {
			w.keep(p)

			break
		}

		w.keep(p[:end])
		w.line()

		p = p[end+1:]
	}

	return n, nil
}

func (w *lineWriter) keep(p []byte) {
	if w.skip {
		return
	}

	// What is read beyond the cut lets a credential that lies across it be found.
	room := maxLine + w.redact.longest()
	w.rest = append(w.rest, p[:min(len(p), max(0, room-len(w.rest)))]...)
	w.skip = len(w.rest) >= room
}

func (w *lineWriter) line() {
	text := strings.TrimRight(strings.ToValidUTF8(string(w.rest), "?"), "\r")
	w.rest, w.skip = w.rest[:0], false
	text = w.redact.clean(text)

	if len(text) > maxLine {
		text = strings.ToValidUTF8(text[:maxLine], "")
	}

	w.seen(text)
}

// flush handles a last line without an end.
func (w *lineWriter) flush() {
	w.mu.Lock()
	defer w.mu.Unlock()

	if len(w.rest) > 0 {
		w.line()
	}
}
