// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/demand"
)

func parseTime(t *testing.T, text string) time.Time {
	t.Helper()

	out, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}

	return out
}

func newDuration(d time.Duration) metav1.Duration { return metav1.Duration{Duration: d} }

func TestScheduledMin(t *testing.T) {
	t.Parallel()

	office := v1alpha1.Schedule{Name: "office", Start: "0 7 * * 1-5", Duration: newDuration(11 * time.Hour), MinReplicas: 5}
	noon := v1alpha1.Schedule{Name: "noon", Start: "30 11 * * *", Duration: newDuration(2 * time.Hour), MinReplicas: 8}
	berlin := v1alpha1.Schedule{Name: "berlin", Start: "0 7 * * *", TimeZone: "Europe/Berlin", Duration: newDuration(time.Hour), MinReplicas: 3}
	night := v1alpha1.Schedule{Name: "night", Start: "0 22 * * fri", Duration: newDuration(10 * time.Hour), MinReplicas: 2}

	cases := map[string]struct {
		windows   []v1alpha1.Schedule
		now, next string
		want      int
	}{
		"none":                             {now: "2026-01-02T03:04:05Z"},
		"before it opens":                  {[]v1alpha1.Schedule{office}, "2026-01-02T06:59:59Z", "2026-01-02T07:00:00Z", 0},
		"as it opens":                      {[]v1alpha1.Schedule{office}, "2026-01-02T07:00:00Z", "2026-01-02T18:00:00Z", 5},
		"just before it closes":            {[]v1alpha1.Schedule{office}, "2026-01-02T17:59:59Z", "2026-01-02T18:00:00Z", 5},
		"at its end, before the weekend":   {[]v1alpha1.Schedule{office}, "2026-01-02T18:00:00Z", "2026-01-05T07:00:00Z", 0},
		"the highest of those open counts": {[]v1alpha1.Schedule{office, noon}, "2026-01-02T12:00:00Z", "2026-01-02T13:30:00Z", 8},
		"the nearest boundary is next":     {[]v1alpha1.Schedule{office, noon}, "2026-01-02T08:00:00Z", "2026-01-02T11:30:00Z", 5},
		"over midnight":                    {[]v1alpha1.Schedule{night}, "2026-01-03T07:59:00Z", "2026-01-03T08:00:00Z", 2},
		"in winter time":                   {[]v1alpha1.Schedule{berlin}, "2026-01-02T06:30:00Z", "2026-01-02T07:00:00Z", 3},
		"in summer time":                   {[]v1alpha1.Schedule{berlin}, "2026-07-02T05:30:00Z", "2026-07-02T06:00:00Z", 3},
		"closed in summer time":            {[]v1alpha1.Schedule{berlin}, "2026-07-02T06:30:00Z", "2026-07-03T05:00:00Z", 0},
		"a window that is longer than its period is always open": {
			[]v1alpha1.Schedule{{Name: "always", Start: "0 0 * * *", Duration: newDuration(48 * time.Hour), MinReplicas: 1}},
			"2026-01-02T23:00:00Z", "2026-01-04T00:00:00Z", 1,
		},
		"a time that a clock change skips comes later": {
			[]v1alpha1.Schedule{{Name: "gap", Start: "30 2 * * *", TimeZone: "Europe/Berlin", Duration: newDuration(time.Hour), MinReplicas: 4}},
			"2026-03-29T01:45:00Z", "2026-03-29T02:30:00Z", 4,
		},
		"the next leap day is years later": {
			[]v1alpha1.Schedule{{Name: "leap", Start: "0 0 29 2 *", Duration: newDuration(time.Hour), MinReplicas: 4}},
			"2096-03-01T00:00:00Z", "2104-02-29T00:00:00Z", 0,
		},
		"day of month or day of week is sufficient": {
			[]v1alpha1.Schedule{{Name: "days", Start: "0 0 13 * 5", Duration: newDuration(time.Hour), MinReplicas: 4}},
			"2026-01-03T00:00:00Z", "2026-01-09T00:00:00Z", 0,
		},
		"a day field with a star does not count": {
			[]v1alpha1.Schedule{{Name: "days", Start: "0 0 */2 * 5", Duration: newDuration(time.Hour), MinReplicas: 4}},
			"2026-01-03T00:00:00Z", "2026-01-09T00:00:00Z", 0,
		},
		"names, lists, steps": {
			[]v1alpha1.Schedule{{Name: "mix", Start: "*/20,50 8-10/2 1 JAN,dec SUN-Tue", Duration: newDuration(time.Minute), MinReplicas: 4}},
			"2026-01-04T08:41:00Z", "2026-01-04T08:50:00Z", 0,
		},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got, next, err := demand.FindScheduledMin(test.windows, 10, parseTime(t, test.now))
			if err != nil || got != test.want {
				t.Errorf("min = %d (%v), want %d", got, err, test.want)
			}

			var want time.Time
			if test.next != "" {
				want = parseTime(t, test.next)
			}

			if !next.Equal(want) {
				t.Errorf("next = %s, want %s", next, want)
			}
		})
	}
}

func TestScheduledMinErrors(t *testing.T) {
	t.Parallel()

	good := v1alpha1.Schedule{Name: "good", Start: "* * * * *", Duration: newDuration(time.Minute), MinReplicas: 2}
	with := func(change func(*v1alpha1.Schedule)) v1alpha1.Schedule {
		out := good
		out.Name = "bad"
		change(&out)

		return out
	}

	cases := map[string]struct {
		window v1alpha1.Schedule
		says   string
	}{
		"too few fields":  {with(func(w *v1alpha1.Schedule) { w.Start = "0 7 * *" }), "has 4 fields, want 5"},
		"a nickname":      {with(func(w *v1alpha1.Schedule) { w.Start = "@daily" }), "has 1 fields, want 5"},
		"out of range":    {with(func(w *v1alpha1.Schedule) { w.Start = "60 7 * * *" }), `"60" is not between 0 and 59`},
		"day zero":        {with(func(w *v1alpha1.Schedule) { w.Start = "0 7 0 * *" }), `"0" is not between 1 and 31`},
		"backwards":       {with(func(w *v1alpha1.Schedule) { w.Start = "0 7 * * 5-1" }), "range 5-1 ends before it starts"},
		"no step":         {with(func(w *v1alpha1.Schedule) { w.Start = "*/0 7 * * *" }), `step "0" is not a number from 1 to 255`},
		"a huge step":     {with(func(w *v1alpha1.Schedule) { w.Start = "*/9223372036854775807 7 * * *" }), "is not a number from 1 to 255"},
		"no number":       {with(func(w *v1alpha1.Schedule) { w.Start = "0 seven * * *" }), `"seven" is not between 0 and 23`},
		"signed":          {with(func(w *v1alpha1.Schedule) { w.Start = "+1 7 * * *" }), `"+1" is not between`},
		"empty item":      {with(func(w *v1alpha1.Schedule) { w.Start = "0, 7 * * *" }), `"" is not between`},
		"never":           {with(func(w *v1alpha1.Schedule) { w.Start = "0 7 30 2 *" }), "never occurs"},
		"unknown zone":    {with(func(w *v1alpha1.Schedule) { w.TimeZone = "Europe/Atlantis" }), `timeZone "Europe/Atlantis" is unknown`},
		"the host's zone": {with(func(w *v1alpha1.Schedule) { w.TimeZone = "Local" }), `timeZone "Local" is unknown`},
		"no duration":     {with(func(w *v1alpha1.Schedule) { w.Duration.Duration = 0 }), "duration 0s must be greater than zero"},
		"above the pool":  {with(func(w *v1alpha1.Schedule) { w.MinReplicas = 11 }), "minReplicas 11 is above scaling.maxReplicas 10"},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got, _, err := demand.FindScheduledMin([]v1alpha1.Schedule{test.window, good}, 10, getStartTime())
			if err == nil || !strings.Contains(err.Error(), test.says) || !strings.Contains(err.Error(), `"bad"`) {
				t.Errorf("error = %v, want one about %q", err, test.says)
			}

			if got != int(good.MinReplicas) {
				t.Errorf("min = %d, want that of the valid window", got)
			}
		})
	}
}

// The result for any window agrees with a check of every minute of the last days.
func TestScheduledMinAgreesWithACalendar(t *testing.T) {
	t.Parallel()

	checkProperty(t, "a window is open iff one of its starts lies within its duration before now", prop.ForAll(
		func(minute, hour, weekday, minutes, offset int) string {
			window := v1alpha1.Schedule{
				Name: "w", Start: fmt.Sprintf("%d */%d * * %d", minute, hour, weekday), Duration: newDuration(time.Duration(minutes) * time.Minute), MinReplicas: 1,
			}
			now := getStartTime().Add(time.Duration(offset) * time.Second)

			got, next, err := demand.FindScheduledMin([]v1alpha1.Schedule{window}, 1, now)
			if err != nil {
				return err.Error()
			}

			starts := func(timestamp time.Time) bool {
				return timestamp.Minute() == minute && timestamp.Hour()%hour == 0 && int(timestamp.Weekday()) == weekday%7
			}
			want := 0

			for timestamp := now.Truncate(time.Minute); timestamp.Add(window.Duration.Duration).After(now); timestamp = timestamp.Add(-time.Minute) {
				if starts(timestamp) {
					want = 1
				}
			}

			switch {
			case got != want:
				return fmt.Sprintf("%s: open %d, want %d", now, got, want)
			case !next.After(now):
				return "the boundary is over"
			case want == 0 && !starts(next):
				return fmt.Sprintf("opens at %s, which is no start", next)
			}

			return ""
		}, gen.IntRange(0, 59), gen.IntRange(1, 23), gen.IntRange(0, 7), gen.IntRange(1, 3000), gen.IntRange(0, 14*24*3600)))
}

func FuzzScheduledMin(f *testing.F) {
	f.Add("0 7 * * 1-5", "Europe/Berlin")
	f.Add("*/5,10-20/3 * 29 feb sun", "")
	f.Fuzz(func(t *testing.T, expression, zone string) {
		window := v1alpha1.Schedule{Name: "w", Start: expression, TimeZone: zone, Duration: newDuration(time.Hour), MinReplicas: 1}

		_, next, err := demand.FindScheduledMin([]v1alpha1.Schedule{window}, 1, getStartTime())
		if err == nil && !next.After(getStartTime()) {
			t.Errorf("%q: the next boundary %s is in the past", expression, next)
		}
	})
}
