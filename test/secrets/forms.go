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

// Limits of the search.
const (
	// minFormLength is the minimum length of a form in bytes. Shorter texts would be found by chance.
	minFormLength = 12
	// maxInflatedSize is the maximum decompressed size of one compressed part in bytes.
	maxInflatedSize = 16 << 20
	// maxDepth is the maximum number of nested compressed parts.
	maxDepth = 3
)

// forms returns the encodings of a value by name.
func forms(value string) map[string]string {
	out := map[string]string{}
	add := func(name, form string) {
		if len(form) >= minFormLength {
			out[name] = form
		}
	}

	add("unencoded", value)
	add("hexadecimal", hex.EncodeToString([]byte(value)))
	add("HEXADECIMAL", strings.ToUpper(hex.EncodeToString([]byte(value))))
	add("escaped for a query", url.QueryEscape(value))
	add("escaped for a path", url.PathEscape(value))

	if text, err := json.Marshal(value); err == nil {
		add("in JSON", strings.Trim(string(text), `"`))
	}

	for encoded := range base64Fragments(value) {
		add("base64 "+encoded, encoded)
		add("base64url "+encoded, toURLAlphabet(encoded))

		for doubleEncoded := range base64Fragments(encoded) {
			add("base64 in base64 "+doubleEncoded, doubleEncoded)
		}
	}

	for name, form := range pemForms(value) {
		add(name, form)
	}

	return out
}

// pemForms returns the forms of a value in PEM: each line, and the DER content. It returns nil for any
// other value.
func pemForms(value string) map[string]string {
	block, _ := pem.Decode([]byte(value))
	if block == nil {
		return nil
	}

	out := map[string]string{"DER": string(block.Bytes), "DER in hexadecimal": hex.EncodeToString(block.Bytes)}

	for line := range strings.Lines(value) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "-----") {
			out["a line of PEM "+line] = line

			for encoded := range base64Fragments(line) {
				out["base64 of a line of PEM "+encoded] = encoded
			}
		}
	}

	return out
}

// base64Fragments returns the three texts that a value can have inside a longer base64 text, depending on
// its offset. It leaves out the first and last characters, which also depend on the neighboring bytes.
func base64Fragments(value string) map[string]bool {
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

// toURLAlphabet converts a base64 text to the alphabet for URLs.
func toURLAlphabet(text string) string { return strings.NewReplacer("+", "-", "/", "_").Replace(text) }

// inflateParts returns the decompressed content of all gzip parts of the data, also of parts in base64.
func inflateParts(data []byte) [][]byte {
	var out [][]byte

	for _, at := range findAll(data, "\x1f\x8b\x08") {
		if part := gunzip(data[at:]); len(part) > 0 {
			out = append(out, part)
		}
	}

	for _, at := range findAll(data, "H4sI") {
		if raw := decodeBase64(data[at:]); len(raw) > 0 {
			out = append(out, gunzip(raw))
		}
	}

	return out
}

func findAll(data []byte, mark string) []int {
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

// gunzip decompresses the gzip stream at the start of the data. It returns as much as can be decompressed.
func gunzip(data []byte) []byte {
	reader, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil
	}

	reader.Multistream(false)

	out, _ := io.ReadAll(io.LimitReader(reader, maxInflatedSize)) // also use the data before an error

	return out
}

// decodeBase64 decodes the base64 text at the start of the data, which may span several lines.
func decodeBase64(data []byte) []byte {
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
