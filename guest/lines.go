// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"strings"
	"sync"
	"unicode/utf8"
)

// maxLineBytes is the length at which a line of the runner's output is truncated.
const maxLineBytes = 8 << 10

// lineWriter passes each line of a program's output to a function. It redacts credentials first.
type lineWriter struct {
	redactor *redactor
	handle   func(line string)

	mu          sync.Mutex
	buffer      []byte
	isTruncated bool // the rest of the line is dropped, because the line is too long
}

// maxLoggedOutput bounds how much of the runner's output the service logs. Its log goes to the journal and the
// console of the machine, which would otherwise fill the disk, and be slower than the job.
const maxLoggedOutput = 64 << 20

// newOutputWriter returns a writer for the runner's output. It logs each line until the limit, keeps the end of the
// output for the last report, and passes each line to handle.
func (s *Service) newOutputWriter(handle func(string)) *lineWriter {
	return s.newLineWriter(func(text string) {
		s.tail.add(text)
		s.logOutput(text)
		handle(text)
	})
}

// logOutput logs a line of the runner's output. At the limit it says once that it logs no further lines.
func (s *Service) logOutput(text string) {
	if text == "" || s.loggedOutput > maxLoggedOutput {
		return
	}

	if s.loggedOutput += len(text); s.loggedOutput > maxLoggedOutput {
		s.log.Warn("the runner's output is larger than 64 MiB, and is no longer logged here: the operator receives its end")

		return
	}

	s.log.Info("runner output", "line", text)
}

// newLineWriter returns a writer that only passes the lines to handle.
func (s *Service) newLineWriter(handle func(string)) *lineWriter {
	return &lineWriter{redactor: &s.redactor, handle: handle}
}

func (w *lineWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()

	n := len(p)

	for len(p) > 0 {
		end := bytes.IndexByte(p, '\n')
		if end < 0 {
			w.appendBytes(p)

			break
		}

		w.appendBytes(p[:end])
		w.handleLine(w.isTruncated)

		p = p[end+1:]
	}

	return n, nil
}

func (w *lineWriter) appendBytes(p []byte) {
	if w.isTruncated {
		return
	}

	// The buffer is larger than maxLineBytes by the longest credential, so that a credential across the end
	// of the truncated line is redacted too.
	limit := maxLineBytes + w.redactor.maxSecretLength()
	w.buffer = append(w.buffer, p[:min(len(p), max(0, limit-len(w.buffer)))]...)
	w.isTruncated = len(w.buffer) >= limit
}

// mayBeCut is the value of isCut for a line without a newline.
const mayBeCut = true

// handleLine handles the line in the buffer. isCut says that the line may end in the middle of a character.
func (w *lineWriter) handleLine(isCut bool) {
	line := w.buffer
	if isCut {
		line = trimPartialRune(line)
	}

	text := strings.TrimRight(decodeOutput(line), "\r")
	w.buffer, w.isTruncated = w.buffer[:0], false
	text = w.redactor.redact(text)

	if len(text) > maxLineBytes {
		text = strings.ToValidUTF8(text[:maxLineBytes], "")
	}

	w.handle(text)
}

// flush handles a last line that has no newline.
func (w *lineWriter) flush() {
	w.mu.Lock()
	defer w.mu.Unlock()

	if len(w.buffer) > 0 {
		w.handleLine(mayBeCut)
	}
}

// trimPartialRune removes the first bytes of a UTF-8 character at the end of a line that was cut.
func trimPartialRune(line []byte) []byte {
	for i := len(line) - 1; i >= max(0, len(line)-utf8.UTFMax+1); i-- {
		if !utf8.RuneStart(line[i]) {
			continue
		}

		if !utf8.FullRune(line[i:]) {
			return line[:i]
		}

		break
	}

	return line
}
