// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package log

import (
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"log/slog"
)

// Redacted is what is printed in place of a secret.
const Redacted = "REDACTED"

// Secret is a text that must not be printed. Every way to format, encode or log it
// gives Redacted, or nothing at all for the empty one; Reveal is the only way in.
// It holds its text behind a pointer, so that printing a struct with a Secret in an
// unexported field, where no method is called, shows an address.
type Secret struct {
	text *string
}

// NewSecret wraps a text.
func NewSecret(text string) Secret { return Secret{text: &text} }

// Reveal returns the text, for the one place that has to send it.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}

	return *s.text
}

// Empty says whether there is no text.
func (s Secret) Empty() bool { return s.Reveal() == "" }

// Equal compares two secrets in a time that does not depend on what is in them.
func (s Secret) Equal(other Secret) bool {
	return subtle.ConstantTimeCompare([]byte(s.Reveal()), []byte(other.Reveal())) == 1
}

// String returns Redacted, or "" for the empty secret.
func (s Secret) String() string {
	if s.Empty() {
		return ""
	}

	return Redacted
}

// GoString is String, for %#v.
func (s Secret) GoString() string { return "log.Secret(" + s.String() + ")" }

// Format prints String for every verb, those that don't fit a text included.
func (s Secret) Format(state fmt.State, verb rune) {
	text := s.String()
	if verb == 'v' && state.Flag('#') {
		text = s.GoString()
	}

	_, _ = state.Write([]byte(text))
}

// MarshalText returns String, for encoders other than JSON.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalJSON returns String as JSON.
func (s Secret) MarshalJSON() ([]byte, error) {
	return json.Marshal(s.String())
}

// LogValue returns String, for log/slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }
