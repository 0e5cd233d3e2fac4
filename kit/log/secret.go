// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package log

import (
	"encoding/json"
	"fmt"
	"log/slog"
)

// Redacted is printed in place of a secret.
const Redacted = "REDACTED"

// Secret is a text that must not be printed. Formatting, encoding or logging it results in
// Redacted, or in an empty text if the secret is empty. Only Reveal returns the text. Secret stores
// the text behind a pointer, because package fmt calls no methods on unexported fields: for a
// Secret in such a field, it prints an address.
type Secret struct {
	text *string
}

// NewSecret returns a Secret with the text.
func NewSecret(text string) Secret { return Secret{text: &text} }

// Reveal returns the text. Call it only where the secret is sent or used.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}

	return *s.text
}

// IsEmpty returns whether the secret has no text.
func (s Secret) IsEmpty() bool { return s.Reveal() == "" }

// String returns Redacted, or "" if the secret is empty.
func (s Secret) String() string {
	if s.IsEmpty() {
		return ""
	}

	return Redacted
}

// GoString returns the result of String in the form for %#v.
func (s Secret) GoString() string { return "log.Secret(" + s.String() + ")" }

// Format prints the result of String for every verb, including verbs that are invalid for a text.
func (s Secret) Format(state fmt.State, verb rune) {
	text := s.String()
	if verb == 'v' && state.Flag('#') {
		text = s.GoString()
	}

	_, _ = state.Write([]byte(text))
}

// MarshalText returns the result of String, for encoders other than JSON.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalJSON returns the result of String as JSON.
func (s Secret) MarshalJSON() ([]byte, error) {
	return json.Marshal(s.String())
}

// LogValue returns the result of String, for log/slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }
