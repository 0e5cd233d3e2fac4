// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest_test

import (
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/guest"
)

func TestTail(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		limit int
		lines []string
		want  string
	}{
		"nothing":              {10, nil, ""},
		"all of it":            {10, []string{"one", "two"}, "one\ntwo\n"},
		"whole lines only":     {10, []string{"one", "two", "three"}, "two\nthree\n"},
		"exactly the limit":    {8, []string{"one", "two", "xyz"}, "two\nxyz\n"},
		"a line over the room": {4, []string{"one", "a long one"}, ""},
		"after a long one":     {8, []string{"a very long line", "two"}, "two\n"},
		"colours and controls": {64, []string{"\x1b[0;33mWARN\x1b[0;m a\tb\x07\x00 ü\r"}, "WARN a\tb ü\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			if got := guest.KeepTail(tc.limit, tc.lines...); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// FuzzTail checks that the tail is never longer than the limit, and is the end of the input.
func FuzzTail(f *testing.F) {
	f.Add(10, "one\ntwo\nthree\n")
	f.Add(1, "\x1b[0m\n\n\n")
	f.Fuzz(func(t *testing.T, limit int, text string) {
		limit = 1 + int(uint(limit)%1000)
		text = strings.ToValidUTF8(text, "?")

		got := guest.KeepTail(limit, strings.Split(text, "\n")...)
		all := guest.KeepTail(1<<30, strings.Split(text, "\n")...)

		if len(got) > limit || !strings.HasSuffix(all, got) {
			t.Errorf("limit %d: %q of %q", limit, got, all)
		}

		if rest := strings.TrimSuffix(all, got); rest != "" && !strings.HasSuffix(rest, "\n") {
			t.Errorf("cut in the middle of a line: %q | %q", rest, got)
		}
	})
}

// FuzzRunnerOutput checks that the parsers handle any output of a runner, which includes the output of jobs.
func FuzzRunnerOutput(f *testing.F) {
	f.Add("Checking for jobs... received   job=1 job_name=x")
	f.Add("WARNING: Job failed (system failure): x   duration_s=1")
	f.Add("Starting job at https://x")
	f.Add("2026-01-01: Job a completed with result: Succeeded")
	f.Fuzz(func(t *testing.T, line string) {
		for _, name := range guest.ListPlatforms() {
			if text, ok := guest.ParseLine(name, line); ok && len(text) > len(line)+200 {
				t.Errorf("%s parses %q from %q", name, text, line)
			}
		}
	})
}
