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

// cron is a parsed cron expression of five fields, as crontab(5) of Vixie cron describes them. Each
// field is a bit set of numbers.
type cron struct {
	minute, hour, day, month, weekday uint64
	// matchesEitherDay is true if both day and weekday are restricted. A date then has to match only one of
	// them.
	matchesEitherDay bool
}

// field describes the valid values of a field of a cron expression.
type field struct {
	name     string
	min, max int
	// names are the names of the numbers, starting at min.
	names []string
}

func cronFields() [5]field {
	return [5]field{
		{name: "minute", max: 59},
		{name: "hour", max: 23},
		{name: "day of the month", min: 1, max: 31},
		{name: "month", min: 1, max: 12, names: strings.Fields("jan feb mar apr may jun jul aug sep oct nov dec")},
		// Both 0 and 7 are Sunday.
		{name: "day of the week", max: 7, names: strings.Fields("sun mon tue wed thu fri sat")},
	}
}

// parseCron parses an expression such as "0 7 * * 1-5". Its fields are minute, hour, day of the
// month, month and weekday. Each field is a "*", a number, a name or a range, optionally with a
// step, or a list of these.
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
		matchesEitherDay: !strings.HasPrefix(texts[2], "*") && !strings.HasPrefix(texts[4], "*"),
	}, nil
}

// parse returns the values of a field as a bit set. The field is a list of values, ranges and steps, such
// as 1-5,10-30/5.
func (f field) parse(text string) (uint64, error) {
	var set uint64

	for part := range strings.SplitSeq(text, ",") {
		span, stepText, hasStep := strings.Cut(part, "/")
		step := 1

		if hasStep {
			n, err := strconv.ParseUint(stepText, 10, 8)
			if err != nil || n < 1 {
				return 0, fmt.Errorf("step %q is not a number from 1 to 255", stepText)
			}

			step = int(n)
		}

		low, high, err := f.parseRange(span, hasStep)
		if err != nil {
			return 0, err
		}

		for n := low; n <= high; n += step {
			set |= 1 << n
		}
	}

	return set, nil
}

// parseRange parses "*", "a" or "a-b". If the field has a step, "a" is the range from a to the maximum.
func (f field) parseRange(text string, hasStep bool) (low, high int, err error) {
	if text == "*" {
		return f.min, f.max, nil
	}

	first, last, isRange := strings.Cut(text, "-")

	if low, err = f.parseNumber(first); err != nil {
		return 0, 0, err
	}

	switch {
	case isRange:
		if high, err = f.parseNumber(last); err != nil {
			return 0, 0, err
		}
	case hasStep:
		high = f.max
	default:
		high = low
	}

	if low > high {
		return 0, 0, fmt.Errorf("range %s-%s ends before it starts", first, last)
	}

	return low, high, nil
}

func (f field) parseNumber(text string) (int, error) {
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

// matchesDay returns whether the expression matches any time on the date.
func (c cron) matchesDay(year int, month time.Month, day int) bool {
	if c.month&(1<<month) == 0 {
		return false
	}

	weekday := time.Date(year, month, day, 0, 0, 0, 0, time.UTC).Weekday()
	byDay, byWeekday := c.day&(1<<day) != 0, c.weekday&(1<<weekday) != 0

	if c.matchesEitherDay {
		return byDay || byWeekday
	}

	return byDay && byWeekday
}

// maxGapDays is the longest gap between two matching days: that between the two 29ths of February
// around a year such as 2100.
const maxGapDays = 8*366 + 1

var errNoSuchDay = errors.New("the calendar has no such day")

// timesAround returns the last matching time that is not after t, and the first matching time after
// t, in the time zone of t. If a clock change skips a matching time, the time moves later by the
// amount of the change. If a clock change repeats a matching time, the time counts once.
func (c cron) timesAround(t time.Time) (before, after time.Time, err error) {
	year, month, day := t.Date()
	date := time.Date(year, month, day, 0, 0, 0, 0, time.UTC)

	// A clock change can cross midnight, so both searches start one day early.
	for n := -1; n <= maxGapDays && before.IsZero(); n++ {
		c.forEachTime(date.AddDate(0, 0, -n), t.Location(), func(at time.Time) {
			if !at.After(t) && at.After(before) {
				before = at
			}
		})
	}

	for n := -1; n <= maxGapDays && after.IsZero(); n++ {
		c.forEachTime(date.AddDate(0, 0, n), t.Location(), func(at time.Time) {
			if at.After(t) && (after.IsZero() || at.Before(after)) {
				after = at
			}
		})
	}

	if before.IsZero() || after.IsZero() {
		return before, after, errNoSuchDay
	}

	return before, after, nil
}

// forEachTime calls yield for each matching time on the date.
func (c cron) forEachTime(date time.Time, zone *time.Location, yield func(time.Time)) {
	const hours, minutes = 24, 60

	year, month, day := date.Date()
	if !c.matchesDay(year, month, day) {
		return
	}

	for hour := range hours {
		if c.hour&(1<<hour) == 0 {
			continue
		}

		for minute := range minutes {
			if c.minute&(1<<minute) != 0 {
				yield(timeOn(year, month, day, hour, minute, zone))
			}
		}
	}
}

// timeOn returns the instant at which a clock in the zone shows this date and time. If a clock change skips the time,
// time.Date returns an instant that is too early or too late by the amount of the change, depending on the zone.
// timeOn always returns the later one.
func timeOn(year int, month time.Month, day, hour, minute int, zone *time.Location) time.Time {
	out := time.Date(year, month, day, hour, minute, 0, 0, zone)
	_, offset := out.Zone()
	// wanted and shown are times on the clock. Both are in UTC, so that their difference does not depend on the zone.
	wanted := time.Date(year, month, day, hour, minute, 0, 0, time.UTC)
	shown := out.UTC().Add(time.Duration(offset) * time.Second)

	return out.Add(max(0, wanted.Sub(shown))) // wanted is after shown if time.Date was too early
}
