// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package log

import (
	"cmp"
	"context"
	"errors"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Redactor removes secrets from texts: those that it knows, in the forms that errors and
// URLs write them in, and what has the shape of one. It is safe for concurrent use.
type Redactor struct {
	known *strings.Replacer
	shape *regexp.Regexp
}

// NewRedactor makes a Redactor of the shapes of secrets, nil if they have none, and of
// secrets; empty ones are none.
func NewRedactor(shape *regexp.Regexp, secrets ...string) Redactor {
	var known []string

	for _, secret := range secrets {
		if secret == "" {
			continue
		}

		quoted := strconv.Quote(secret)
		known = append(known, secret, url.QueryEscape(secret), url.PathEscape(secret), quoted[1:len(quoted)-1])
	}

	// The longest first: one may begin as another does, and its end would stay.
	slices.SortFunc(known, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })

	pairs := make([]string, 0, 2*len(known))
	for _, form := range slices.Compact(known) {
		pairs = append(pairs, form, Redacted)
	}

	return Redactor{known: strings.NewReplacer(pairs...), shape: shape}
}

// Text is a text without secrets.
func (r Redactor) Text(text string) string {
	text = r.known.Replace(text)
	if r.shape == nil {
		return text
	}

	return r.shape.ReplaceAllString(text, Redacted)
}

// Cause is an error's text without secrets. Of the error itself only what callers ask for
// is kept: that it ran out of time or was cancelled. Secrets are further ones that the
// error may hold; empty ones are none.
func (r Redactor) Cause(err error, secrets ...string) error {
	out := &cause{text: NewRedactor(nil, secrets...).Text(r.Text(err.Error()))}

	for _, kept := range []error{context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, kept) {
			out.kept = kept
		}
	}

	return out
}

// URL is a URL with Redacted for its password, or Redacted alone for what is none.
func URL(text string) string {
	parsed, err := url.Parse(text)
	if err != nil {
		return Redacted
	}

	if _, has := parsed.User.Password(); has {
		parsed.User = url.UserPassword(parsed.User.Username(), Redacted)
	}

	return parsed.String()
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
