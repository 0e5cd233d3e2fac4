// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"context"
	"errors"
	"regexp"
	"strings"
)

const redacted = "REDACTED"

// Redactor removes secrets from texts: those that it knows, and what has the shape of
// one. It is safe for concurrent use.
type Redactor struct {
	known *strings.Replacer
	shape *regexp.Regexp
}

// NewRedactor makes a Redactor of a platform's shapes of secrets, and of secrets; empty
// ones are none.
func NewRedactor(shape *regexp.Regexp, secrets ...string) Redactor {
	var pairs []string

	for _, secret := range secrets {
		if secret != "" {
			pairs = append(pairs, secret, redacted)
		}
	}

	return Redactor{known: strings.NewReplacer(pairs...), shape: shape}
}

// Text is a text without secrets.
func (r Redactor) Text(text string) string {
	return r.shape.ReplaceAllString(r.known.Replace(text), redacted)
}

// Cause is an error's text without secrets. Of the error itself only what callers ask for
// is kept: that it ran out of time or was cancelled. Secrets are further ones that the
// error may hold; empty ones are none.
func (r Redactor) Cause(err error, secrets ...string) error {
	out := &cause{text: r.Text(err.Error())}

	for _, secret := range secrets {
		if secret != "" {
			out.text = strings.ReplaceAll(out.text, secret, redacted)
		}
	}

	for _, kept := range []error{context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, kept) {
			out.kept = kept
		}
	}

	return out
}

// cause is an error without secrets; see Redactor.Cause.
type cause struct {
	text string
	kept error
}

// Error gives the redacted text.
func (c *cause) Error() string { return c.text }

// Unwrap gives the context's error, if it was one.
func (c *cause) Unwrap() error { return c.kept }
