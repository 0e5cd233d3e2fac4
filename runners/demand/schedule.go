// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"errors"
	"fmt"
	"time"
	_ "time/tzdata" // time zones are known wherever the program runs, also in an empty image
)

// Window is a window of time that comes again and again, in which a pool keeps more
// machines.
type Window struct {
	Name string
	// Start as a cron expression of five fields, in TimeZone: a name of the IANA
	// database, or empty for UTC.
	Start, TimeZone string
	Duration        time.Duration
	// Min machines are kept while it is open.
	Min int
}

// ScheduledMin gives the highest Min of the windows that are open now, 0 if none is, and
// when that may change; zero means never. A window whose words can't be followed, or that
// asks for more than maxReplicas, counts as closed; the error names each of them and the
// mend.
func ScheduledMin(windows []Window, maxReplicas int, now time.Time) (lowest int, next time.Time, err error) {
	var problems []error

	for _, window := range windows {
		open, boundary, err := window.at(now)
		if err == nil && window.Min > maxReplicas {
			err = fmt.Errorf("minReplicas %d is above scaling.maxReplicas %d", window.Min, maxReplicas)
		}

		if err != nil {
			problems = append(problems, fmt.Errorf("scaling.schedules %q: %w", window.Name, err))

			continue
		}

		if open {
			lowest = max(lowest, window.Min)
		}

		if next.IsZero() || boundary.Before(next) {
			next = boundary
		}
	}

	return lowest, next, errors.Join(problems...)
}

// at says whether the window is open, and when it closes or opens next.
func (w Window) at(now time.Time) (open bool, boundary time.Time, err error) {
	zone, err := zoneOf(w.TimeZone)
	if err != nil {
		return false, time.Time{}, err
	}

	if w.Duration <= 0 {
		return false, time.Time{}, fmt.Errorf("duration %s is not above zero", w.Duration)
	}

	expression, err := parseCron(w.Start)
	if err != nil {
		return false, time.Time{}, fmt.Errorf("start: %w", err)
	}

	before, after, err := expression.around(now.In(zone))
	if err != nil {
		return false, time.Time{}, fmt.Errorf("start %q never comes: %w", w.Start, err)
	}

	if end := before.Add(w.Duration); now.Before(end) {
		return true, end, nil
	}

	return false, after, nil
}

// zoneOf finds a time zone by its name. The machine's own is none: where the operator
// runs must not matter.
func zoneOf(name string) (*time.Location, error) {
	if name == "" {
		return time.UTC, nil
	}

	zone, err := time.LoadLocation(name)
	if err != nil || name == "Local" {
		return nil, fmt.Errorf("timeZone %q is not known: name one of the IANA database, such as Europe/Berlin", name)
	}

	return zone, nil
}
