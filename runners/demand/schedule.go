// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"errors"
	"fmt"
	"time"

	"github.com/hyperfleet/hyperfleet/kit/window"
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
// fix.
func ScheduledMin(windows []Window, maxReplicas int, now time.Time) (lowest int, next time.Time, err error) {
	var problems []error

	for _, w := range windows {
		open, boundary, err := w.at(now)
		if err == nil && w.Min > maxReplicas {
			err = fmt.Errorf("minReplicas %d is above scaling.maxReplicas %d", w.Min, maxReplicas)
		}

		if err != nil {
			problems = append(problems, fmt.Errorf("scaling.schedules %q: %w", w.Name, err))

			continue
		}

		if open {
			lowest = max(lowest, w.Min)
		}

		if next.IsZero() || boundary.Before(next) {
			next = boundary
		}
	}

	return lowest, next, errors.Join(problems...)
}

// at says whether the window is open, and when it closes or opens next.
func (w Window) at(now time.Time) (open bool, boundary time.Time, err error) {
	return window.Window{Start: w.Start, TimeZone: w.TimeZone, Duration: w.Duration}.At(now)
}
