// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package log

import (
	"bytes"
	"fmt"
	"io"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// EscapeUnprintable returns a writer for JSON and for the lines of log/slog. These escape line breaks and ASCII
// control characters themselves. The writer also escapes, in the form of JSON, all other characters that are not
// printable: DEL, the control characters of ISO 6429, which a terminal obeys like escape sequences, and characters
// that change the direction of the text. A call of Write must not end within a character.
func EscapeUnprintable(w io.Writer) io.Writer { return escapingWriter{w} }

type escapingWriter struct{ out io.Writer }

// Write writes the text. It returns the number of bytes before the escaping.
func (w escapingWriter) Write(text []byte) (int, error) {
	if _, err := w.out.Write(escapeUnprintable(text)); err != nil {
		return 0, err
	}

	return len(text), nil
}

// escapeUnprintable does not copy a text without such characters, because it runs for every line.
func escapeUnprintable(text []byte) []byte {
	if !bytes.ContainsFunc(text, isUnprintable) {
		return text
	}

	out := make([]byte, 0, len(text)+16)

	for len(text) > 0 {
		c, size := utf8.DecodeRune(text)

		switch {
		case !isUnprintable(c):
			out = append(out, text[:size]...)
		case c > maxUnit:
			high, low := utf16.EncodeRune(c)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, c)
		}

		text = text[size:]
	}

	return out
}

// maxUnit is the largest character that is one unit of UTF-16.
const maxUnit = 0xffff

// isUnprintable returns whether a character is not printable. It returns false for ASCII characters other than DEL.
func isUnprintable(c rune) bool { return c >= unicode.MaxASCII && !unicode.IsPrint(c) }
