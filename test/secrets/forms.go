// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package secrets

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"io"
	"net/url"
	"strings"
)

// Bounds of what is looked at, and for.
const (
	// shortest is the length of a form below which it would be found by chance.
	shortest = 12
	// largest bounds what one compressed part may come to, in bytes.
	largest = 16 << 20
	// deepest is how often compressed parts may hold compressed parts.
	deepest = 3
)

// forms are the texts that tell of a value, by name.
func forms(value string) map[string]string {
	out := map[string]string{}
	add := func(name, form string) {
		if len(form) >= shortest {
			out[name] = form
		}
	}

	add("as it is", value)
	add("hexadecimal", hex.EncodeToString([]byte(value)))
	add("HEXADECIMAL", strings.ToUpper(hex.EncodeToString([]byte(value))))
	add("escaped for a query", url.QueryEscape(value))
	add("escaped for a path", url.PathEscape(value))

	if text, err := json.Marshal(value); err == nil {
		add("in JSON", strings.Trim(string(text), `"`))
	}

	for once := range within64(value) {
		add("base64 "+once, once)
		add("base64url "+once, url64(once))

		for twice := range within64(once) {
			add("base64 in base64 "+twice, twice)
		}
	}

	for name, form := range pemForms(value) {
		add(name, form)
	}

	return out
}

// pemForms are those of a key in PEM: each of its lines, and what they stand for.
func pemForms(value string) map[string]string {
	block, _ := pem.Decode([]byte(value))
	if block == nil {
		return nil
	}

	out := map[string]string{"DER": string(block.Bytes), "DER in hexadecimal": hex.EncodeToString(block.Bytes)}

	for line := range strings.Lines(value) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "-----") {
			out["a line of PEM "+line] = line

			for once := range within64(line) {
				out["base64 of a line of PEM "+once] = once
			}
		}
	}

	return out
}

// within64 gives what a value looks like inside of a longer text in base64: there are three
// ways, by where it begins. The ends, which depend on what is beside the value, are left out.
func within64(value string) map[string]bool {
	out := map[string]bool{}

	for shift := range 3 {
		padded := strings.Repeat("\x00", shift) + value
		text := base64.RawStdEncoding.EncodeToString([]byte(padded))
		from, to := (shift*8+5)/6, len(padded)*8/6

		if from < to {
			out[text[from:to]] = true
		}
	}

	return out
}

// url64 is a text in base64 in the alphabet for URLs.
func url64(text string) string { return strings.NewReplacer("+", "-", "/", "_").Replace(text) }

// inflated gives what the compressed parts of the data come to, those in base64 as well.
func inflated(data []byte) [][]byte {
	var out [][]byte

	for _, at := range indexes(data, "\x1f\x8b\x08") {
		if part := gunzip(data[at:]); len(part) > 0 {
			out = append(out, part)
		}
	}

	for _, at := range indexes(data, "H4sI") {
		if raw := decode64(data[at:]); len(raw) > 0 {
			out = append(out, gunzip(raw))
		}
	}

	return out
}

func indexes(data []byte, mark string) []int {
	var out []int

	for from := 0; ; {
		at := bytes.Index(data[from:], []byte(mark))
		if at < 0 {
			return out
		}

		out = append(out, from+at)
		from += at + len(mark)
	}
}

// gunzip gives as much as there is to be had of what the data begins with.
func gunzip(data []byte) []byte {
	reader, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil
	}

	reader.Multistream(false)

	out, _ := io.ReadAll(io.LimitReader(reader, largest)) // what was read before an error counts too

	return out
}

// decode64 decodes the base64 that the data begins with, over lines too.
func decode64(data []byte) []byte {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_"

	text := make([]byte, 0, len(data))

	for _, c := range data {
		switch {
		case c == '\n' || c == '\r' || c == ' ':
			continue
		case strings.IndexByte(alphabet, c) >= 0:
			text = append(text, c)

			continue
		}

		break
	}

	plain := strings.NewReplacer("-", "+", "_", "/").Replace(string(text))
	out, _ := base64.RawStdEncoding.DecodeString(plain[:len(plain)/4*4])

	return out
}
