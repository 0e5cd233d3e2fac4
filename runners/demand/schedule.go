// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"errors"
	"fmt"
	"time"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/window"
)

// FindScheduledMin returns the highest minReplicas of the schedules whose window is open now, or 0 if none is
// open. next is the time at which that may change; zero means never. A window counts as closed if it is
// invalid or if its minReplicas is above maxReplicas. The error names each such window and the fix.
func FindScheduledMin(
	schedules []v1alpha1.Schedule, maxReplicas int32, now time.Time,
) (highestMin int, next time.Time, err error) {
	var problems []error

	for _, schedule := range schedules {
		period := window.Window{Start: schedule.Start, TimeZone: schedule.TimeZone, Duration: schedule.Duration.Duration}

		isOpen, boundary, err := period.StateAt(now)
		if err == nil && schedule.MinReplicas > maxReplicas {
			err = fmt.Errorf("minReplicas %d is above scaling.maxReplicas %d", schedule.MinReplicas, maxReplicas)
		}

		if err != nil {
			problems = append(problems, fmt.Errorf("scaling.schedules %q: %w", schedule.Name, err))

			continue
		}

		if isOpen {
			highestMin = max(highestMin, int(schedule.MinReplicas))
		}

		if next.IsZero() || boundary.Before(next) {
			next = boundary
		}
	}

	return highestMin, next, errors.Join(problems...)
}
