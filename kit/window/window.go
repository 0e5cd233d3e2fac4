// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package window

import (
	"fmt"
	"time"
	_ "time/tzdata" // embeds the time zones, because the container image has none
)

// Window is a recurring time window.
type Window struct {
	// Start is a cron expression of five fields in TimeZone. TimeZone is a name of the IANA database, or
	// empty for UTC.
	Start, TimeZone string
	// Duration is how long the window stays open.
	Duration time.Duration
}

// StateAt returns whether the window is open at the given time. The boundary is the time at which
// an open window closes or a closed window opens next. If a field is invalid, the error names the
// field and the fix.
func (w Window) StateAt(now time.Time) (isOpen bool, boundary time.Time, err error) {
	zone, err := loadZone(w.TimeZone)
	if err != nil {
		return false, time.Time{}, err
	}

	if w.Duration <= 0 {
		return false, time.Time{}, fmt.Errorf("duration %s must be greater than zero", w.Duration)
	}

	expression, err := parseCron(w.Start)
	if err != nil {
		return false, time.Time{}, fmt.Errorf("start: %w", err)
	}

	before, after, err := expression.timesAround(now.In(zone))
	if err != nil {
		return false, time.Time{}, fmt.Errorf("start %q never occurs: %w", w.Start, err)
	}

	if end := before.Add(w.Duration); now.Before(end) {
		return true, end, nil
	}

	return false, after, nil
}

// loadZone loads a time zone by its name. It rejects "Local", because a window must not depend on
// the machine that the operator runs on.
func loadZone(name string) (*time.Location, error) {
	if name == "" {
		return time.UTC, nil
	}

	zone, err := time.LoadLocation(name)
	if err != nil || name == "Local" {
		return nil, fmt.Errorf("timeZone %q is unknown: use a name of the IANA database such as Europe/Berlin", name)
	}

	return zone, nil
}
