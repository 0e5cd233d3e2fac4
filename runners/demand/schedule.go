// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"errors"
	"fmt"
	"time"

	"github.com/hyperfleet/hyperfleet/kit/window"
)

// Window is a recurring time window in which a pool keeps more machines.
type Window struct {
	Name string
	// Start is a cron expression with five fields, evaluated in TimeZone. TimeZone is a name of the
	// IANA database; empty means UTC.
	Start, TimeZone string
	Duration        time.Duration
	// Min is how many machines the pool keeps while the window is open.
	Min int
}

// ScheduledMin returns the highest Min of the windows that are open now, or 0 if none is open. next
// is the time at which that may change; zero means never. A window counts as closed if it is
// invalid or if its Min is above maxReplicas. The error names each such window and the fix.
func ScheduledMin(windows []Window, maxReplicas int, now time.Time) (highestMin int, next time.Time, err error) {
	var problems []error

	for _, w := range windows {
		open, boundary, err := w.stateAt(now)
		if err == nil && w.Min > maxReplicas {
			err = fmt.Errorf("minReplicas %d is above scaling.maxReplicas %d", w.Min, maxReplicas)
		}

		if err != nil {
			problems = append(problems, fmt.Errorf("scaling.schedules %q: %w", w.Name, err))

			continue
		}

		if open {
			highestMin = max(highestMin, w.Min)
		}

		if next.IsZero() || boundary.Before(next) {
			next = boundary
		}
	}

	return highestMin, next, errors.Join(problems...)
}

// stateAt returns whether the window is open at a time, and when it closes or opens next.
func (w Window) stateAt(now time.Time) (open bool, boundary time.Time, err error) {
	return window.Window{Start: w.Start, TimeZone: w.TimeZone, Duration: w.Duration}.StateAt(now)
}
