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

// Redactor replaces secrets in texts. It replaces given secrets, also in the quoted and escaped
// forms in which errors and URLs contain them, and everything that matches a pattern. It is safe
// for concurrent use.
type Redactor struct {
	secrets *strings.Replacer
	pattern *regexp.Regexp
}

// NewRedactor returns a Redactor for the secrets and for all matches of the pattern. The pattern
// may be nil. Empty secrets are ignored.
func NewRedactor(pattern *regexp.Regexp, secrets ...string) Redactor {
	var forms []string

	for _, secret := range secrets {
		if secret == "" {
			continue
		}

		quoted := strconv.Quote(secret)
		forms = append(forms, secret, url.QueryEscape(secret), url.PathEscape(secret), quoted[1:len(quoted)-1])
	}

	// Replace the longest forms first. If a secret is a prefix of another one, the rest of the longer
	// one would otherwise remain.
	slices.SortFunc(forms, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })

	pairs := make([]string, 0, 2*len(forms))
	for _, form := range slices.Compact(forms) {
		pairs = append(pairs, form, Redacted)
	}

	return Redactor{secrets: strings.NewReplacer(pairs...), pattern: pattern}
}

// Redact returns the text without secrets.
func (r Redactor) Redact(text string) string {
	text = r.secrets.Replace(text)
	if r.pattern == nil {
		return text
	}

	return r.pattern.ReplaceAllString(text, Redacted)
}

// RedactError returns an error with the text of err without secrets. The result wraps
// context.Canceled or context.DeadlineExceeded if err does, and no other error, because wrapped
// errors could reveal secrets. The arguments are additional secrets to redact. Empty secrets are
// ignored.
func (r Redactor) RedactError(err error, secrets ...string) error {
	out := &redactedError{text: NewRedactor(nil, secrets...).Redact(r.Redact(err.Error()))}

	for _, target := range []error{context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, target) {
			out.contextErr = target
		}
	}

	return out
}

// RedactURL returns the URL with its password replaced by Redacted. If the text is not a URL, it
// returns Redacted.
func RedactURL(text string) string {
	parsed, err := url.Parse(text)
	if err != nil {
		return Redacted
	}

	if _, hasPassword := parsed.User.Password(); hasPassword {
		parsed.User = url.UserPassword(parsed.User.Username(), Redacted)
	}

	return parsed.String()
}

// redactedError is an error without secrets, see Redactor.RedactError.
type redactedError struct {
	text       string
	contextErr error
}

// Error returns the redacted text.
func (c *redactedError) Error() string { return c.text }

// Unwrap returns context.Canceled, context.DeadlineExceeded or nil.
func (c *redactedError) Unwrap() error { return c.contextErr }
