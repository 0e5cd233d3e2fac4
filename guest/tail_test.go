// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest_test

import (
	"fmt"
	"strings"
	"testing"

	api "github.com/hyperfleet/hyperfleet/api/guest"
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

// TestLastReportHasTheEndOfTheLog: reports of the phases Finished and Failed have the end of the log, without
// credentials and limited in size.
func TestLastReportHasTheEndOfTheLog(t *testing.T) {
	t.Parallel()

	t.Run("job done", func(t *testing.T) {
		t.Parallel()

		m := newGenericMachine(t, `i=0; while [ $i -lt 3000 ]; do echo "line $i: 0123456789 0123456789 0123456789"; i=$((i+1)); done; printf 'the end'`)
		m.cfg.SPIFFE = &api.SPIFFE{JoinToken: reportToken}
		m.cfg.Command[2] += "; echo ' " + reportToken + "' >&2"

		got := m.waitForEnd(t, m.start(t, t.Context()))
		if len(got.Log) > api.MaxLog || len(got.Log) < api.MaxLog-100 {
			t.Errorf("the log has %d bytes", len(got.Log))
		}

		if !strings.HasPrefix(got.Log, "line ") || !strings.HasSuffix(got.Log, "the end ***\n") {
			t.Errorf("the log is %q ... %q", got.Log[:20], got.Log[len(got.Log)-40:])
		}
	})

	t.Run("failed registration", func(t *testing.T) {
		t.Parallel()

		m := newMachine(t)
		m.cfg.JITConfig, m.cfg.RunnerToken, m.cfg.RegistrationURL = "", runnerToken, "https://github.com/o"
		m.write(t, runScript, printListening)
		m.write(t, "/opt/actions-runner/config.sh", `echo "Http response code: NotFound `+runnerToken+`" >&2; exit 1`)

		got := m.waitForEnd(t, m.start(t, t.Context()))
		if got.Reason != api.ReasonRegistrationError || got.Log != "Http response code: NotFound ***\n" {
			t.Errorf("%+v", got)
		}
	})

	t.Run("a credential across the cut of a long line", func(t *testing.T) {
		t.Parallel()

		const cut = 8 << 10

		m := newGitLabMachine(t, fmt.Sprintf(`head -c %d /dev/zero | tr '\0' x; echo %s and more; `, cut-5, runnerToken)+glStarts+glReceives+glSucceeds)

		got := m.waitForEnd(t, m.start(t, t.Context()))
		first, _, _ := strings.Cut(got.Log, "\n")

		if !strings.HasPrefix(first, "xxx") || strings.Contains(first, "runner") || len(first) != cut {
			t.Errorf("the line ends with %q, %d bytes", first[max(0, len(first)-20):], len(first))
		}
	})
}
