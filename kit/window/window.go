// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package window

import (
	"fmt"
	"time"
	_ "time/tzdata" // time zones are known wherever the program runs, also in an empty image
)

// Window is a window of time that comes again and again.
type Window struct {
	// Start as a cron expression of five fields, in TimeZone: a name of the IANA
	// database, or empty for UTC.
	Start, TimeZone string
	Duration        time.Duration
}

// At says whether the window is open, and when it closes or opens next. A window whose
// words can't be followed is an error that names the field and the fix.
func (w Window) At(now time.Time) (open bool, boundary time.Time, err error) {
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
