// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package window

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// cron is a parsed cron expression of five fields, as crontab(5) of Vixie cron describes
// them. Each field is a set of numbers.
type cron struct {
	minute, hour, day, month, weekday uint64
	// eitherDay says that both kinds of days are restricted: then one of them suffices.
	eitherDay bool
}

// field says what a field of a cron expression may hold.
type field struct {
	name     string
	min, max int
	// names of the numbers from min on.
	names []string
}

func cronFields() [5]field {
	return [5]field{
		{name: "minute", max: 59},
		{name: "hour", max: 23},
		{name: "day of the month", min: 1, max: 31},
		{name: "month", min: 1, max: 12, names: strings.Fields("jan feb mar apr may jun jul aug sep oct nov dec")},
		// 7 is Sunday as well.
		{name: "day of the week", max: 7, names: strings.Fields("sun mon tue wed thu fri sat")},
	}
}

// parseCron reads an expression such as "0 7 * * 1-5". Its fields are minute, hour, day of
// the month, month and weekday; each a "*", a number, a name, a range, any of them with a
// step, or a list of those.
func parseCron(expression string) (cron, error) {
	fields := cronFields()

	texts := strings.Fields(expression)
	if len(texts) != len(fields) {
		return cron{}, fmt.Errorf("%q has %d fields, want 5: minute, hour, day, month, weekday",
			expression, len(texts))
	}

	var sets [len(fields)]uint64

	for i, text := range texts {
		set, err := fields[i].parse(text)
		if err != nil {
			return cron{}, fmt.Errorf("%s %q: %w", fields[i].name, text, err)
		}

		sets[i] = set
	}

	const sunday, alsoSunday = 1 << 0, 1 << 7
	if sets[4]&alsoSunday != 0 {
		sets[4] |= sunday
	}

	return cron{
		minute: sets[0], hour: sets[1], day: sets[2], month: sets[3], weekday: sets[4],
		eitherDay: !strings.HasPrefix(texts[2], "*") && !strings.HasPrefix(texts[4], "*"),
	}, nil
}

func (f field) parse(text string) (uint64, error) {
	var set uint64

	for part := range strings.SplitSeq(text, ",") {
		span, stepText, stepped := strings.Cut(part, "/")
		step := 1

		if stepped {
			n, err := strconv.ParseUint(stepText, 10, 8)
			if err != nil || n < 1 {
				return 0, fmt.Errorf("step %q is no number from 1 to 255", stepText)
			}

			step = int(n)
		}

		low, high, err := f.span(span, stepped)
		if err != nil {
			return 0, err
		}

		for n := low; n <= high; n += step {
			set |= 1 << n
		}
	}

	return set, nil
}

// span reads "*", "a" or "a-b". With a step, "a" means from a on.
func (f field) span(text string, stepped bool) (low, high int, err error) {
	if text == "*" {
		return f.min, f.max, nil
	}

	first, last, isRange := strings.Cut(text, "-")

	if low, err = f.number(first); err != nil {
		return 0, 0, err
	}

	switch {
	case isRange:
		if high, err = f.number(last); err != nil {
			return 0, 0, err
		}
	case stepped:
		high = f.max
	default:
		high = low
	}

	if low > high {
		return 0, 0, fmt.Errorf("%s lies after %s", first, last)
	}

	return low, high, nil
}

func (f field) number(text string) (int, error) {
	for i, name := range f.names {
		if strings.EqualFold(text, name) {
			return f.min + i, nil
		}
	}

	n, err := strconv.ParseUint(text, 10, 8)
	if err != nil || int(n) < f.min || int(n) > f.max {
		return 0, fmt.Errorf("%q is not between %d and %d", text, f.min, f.max)
	}

	return int(n), nil
}

// onDay says whether a day of the calendar has any of the expression's moments.
func (c cron) onDay(year int, month time.Month, day int) bool {
	if c.month&(1<<month) == 0 {
		return false
	}

	weekday := time.Date(year, month, day, 0, 0, 0, 0, time.UTC).Weekday()
	byDay, byWeekday := c.day&(1<<day) != 0, c.weekday&(1<<weekday) != 0

	if c.eitherDay {
		return byDay || byWeekday
	}

	return byDay && byWeekday
}

// longestGap in days lies between two 29ths of February around a year such as 2100.
const longestGap = 8*366 + 1

var errNever = errors.New("there is no such day")

// around gives the last of the expression's moments that is not after t, and the first
// that is after it, in t's time zone. A moment that a change of the clocks leaves out is
// taken later by as much as the clocks were changed; one that comes twice is taken once.
func (c cron) around(t time.Time) (before, after time.Time, err error) {
	year, month, day := t.Date()
	date := time.Date(year, month, day, 0, 0, 0, 0, time.UTC)

	// A change of the clocks may lead over midnight, so both searches begin a day early.
	for n := -1; n <= longestGap && before.IsZero(); n++ {
		c.moments(date.AddDate(0, 0, -n), t.Location(), func(at time.Time) {
			if !at.After(t) && at.After(before) {
				before = at
			}
		})
	}

	for n := -1; n <= longestGap && after.IsZero(); n++ {
		c.moments(date.AddDate(0, 0, n), t.Location(), func(at time.Time) {
			if at.After(t) && (after.IsZero() || at.Before(after)) {
				after = at
			}
		})
	}

	if before.IsZero() || after.IsZero() {
		return before, after, errNever
	}

	return before, after, nil
}

// moments gives those of one day of the calendar.
func (c cron) moments(date time.Time, zone *time.Location, yield func(time.Time)) {
	const hours, minutes = 24, 60

	year, month, day := date.Date()
	if !c.onDay(year, month, day) {
		return
	}

	for hour := range hours {
		if c.hour&(1<<hour) == 0 {
			continue
		}

		for minute := range minutes {
			if c.minute&(1<<minute) != 0 {
				yield(time.Date(year, month, day, hour, minute, 0, 0, zone))
			}
		}
	}
}
