// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package window_test

import (
	"strings"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/kit/window"
)

func TestAt(t *testing.T) {
	t.Parallel()

	const saturday = "0 2 * * 6"

	cases := map[string]struct {
		window    window.Window
		now, next string
		open      bool
	}{
		"before it opens": {window.Window{Start: saturday, Duration: time.Hour}, "2026-01-03T01:59:59Z", "2026-01-03T02:00:00Z", false},
		"as it opens":     {window.Window{Start: saturday, Duration: time.Hour}, "2026-01-03T02:00:00Z", "2026-01-03T03:00:00Z", true},
		"as it closes":    {window.Window{Start: saturday, Duration: time.Hour}, "2026-01-03T03:00:00Z", "2026-01-10T02:00:00Z", false},
		"in another zone": {
			window.Window{Start: saturday, Duration: time.Hour, TimeZone: "America/New_York"},
			"2026-01-03T07:30:00Z", "2026-01-03T08:00:00Z", true,
		},
		"a clock change skips the start, east of Greenwich": {
			window.Window{Start: "30 2 * * *", Duration: time.Hour, TimeZone: "Europe/Berlin"},
			"2026-03-29T01:15:00Z", "2026-03-29T01:30:00Z", false,
		},
		"a clock change skips the start, west of Greenwich": {
			window.Window{Start: "30 2 * * *", Duration: time.Hour, TimeZone: "America/New_York"},
			"2026-03-08T07:15:00Z", "2026-03-08T07:30:00Z", false,
		},
		"a clock change skips midnight": {
			window.Window{Start: "0 0 * * *", Duration: time.Hour, TimeZone: "America/Havana"},
			"2026-03-08T04:30:00Z", "2026-03-08T05:00:00Z", false,
		},
		"a clock change repeats the start": {
			window.Window{Start: "30 1 * * *", Duration: 3 * time.Hour, TimeZone: "America/New_York"},
			"2026-11-01T06:30:00Z", "2026-11-01T08:30:00Z", true,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			now, err := time.Parse(time.RFC3339, tc.now)
			if err != nil {
				t.Fatal(err)
			}

			open, next, err := tc.window.StateAt(now)
			if err != nil || open != tc.open || next.UTC().Format(time.RFC3339) != tc.next {
				t.Errorf("At(%s) = %v, %s, %v: want %v, %s", tc.now, open, next.UTC(), err, tc.open, tc.next)
			}
		})
	}
}

func TestAtErrors(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		window window.Window
		want   string
	}{
		"no time":      {window.Window{Start: "0 2 * * *"}, "greater than zero"},
		"four fields":  {window.Window{Start: "0 2 * *", Duration: 1}, "has 4 fields, want 5"},
		"no such day":  {window.Window{Start: "0 2 31 2 *", Duration: 1}, "never occurs"},
		"no such zone": {window.Window{Start: "0 2 * * *", Duration: 1, TimeZone: "Local"}, "IANA"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			if _, _, err := tc.window.StateAt(time.Unix(0, 0)); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v does not say %q", err, tc.want)
			}
		})
	}
}
