// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package log_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/kit/log"
)

func TestRedactor(t *testing.T) {
	t.Parallel()

	const secret = "s3/cr+t \"of\"\nlines"

	r := log.NewRedactor(regexp.MustCompile(`tok_[a-z]+`), "", "pre", "prefixed", secret)

	for text, want := range map[string]string{
		"nothing":                              "nothing",
		"as it is: " + secret:                  "as it is: REDACTED",
		"?q=" + url.QueryEscape(secret) + "&x": "?q=REDACTED&x",
		"/a/" + url.PathEscape(secret) + "/b":  "/a/REDACTED/b",
		fmt.Sprintf("{%q: 1}", secret):         `{"REDACTED": 1}`,
		"the longer one: prefixed.":            "the longer one: REDACTED.",
		"the shape of one: tok_abc":            "the shape of one: REDACTED",
	} {
		if got := r.Redact(text); got != want {
			t.Errorf("Text(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestURL(t *testing.T) {
	t.Parallel()

	for text, want := range map[string]string{
		"https://example.com/a?b=c":     "https://example.com/a?b=c",
		"amqp://who:word@example.com/v": "amqp://who:REDACTED@example.com/v",
		"nats://token@example.com":      "nats://token@example.com",
		"https://who:w%zrd@example.com": "REDACTED",
		"":                              "",
	} {
		if got := log.RedactURL(text); got != want {
			t.Errorf("URL(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestRedactedCause(t *testing.T) {
	t.Parallel()

	inner := &url.Error{Op: "Get", URL: "https://example.com/?token=a+b%2Fc", Err: context.DeadlineExceeded}
	err := log.NewRedactor(nil, "known").RedactError(fmt.Errorf("known: %w", inner), "a b/c", "")

	if text := err.Error(); strings.Contains(text, "known") || strings.Contains(text, "a+b") || !strings.Contains(text, "example.com") {
		t.Errorf("Cause() = %s", text)
	}

	if _, kept := errors.AsType[*url.Error](err); kept || !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		t.Errorf("Cause() keeps the wrong errors: %v", err)
	}
}
