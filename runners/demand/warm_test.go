// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"

	"github.com/hyperfleet/hyperfleet/runners/demand"
)

func TestWarmIdle(t *testing.T) {
	t.Parallel()

	ago := func(seconds ...int) []time.Time {
		var out []time.Time
		for _, s := range seconds {
			out = append(out, getStartTime().Add(-time.Duration(s)*time.Second))
		}

		return out
	}
	timestamp := func(n int) *int { return &n }

	cases := map[string]struct {
		idle     int
		maxIdle  *int
		arrivals []time.Time
		startup  time.Duration
		want     int
		next     time.Duration
	}{
		"fixed":                            {idle: 2, arrivals: ago(1, 2, 3, 4), want: 2},
		"a bound as low as the floor":      {idle: 2, maxIdle: timestamp(2), arrivals: ago(1, 2, 3, 4), want: 2},
		"no jobs came":                     {idle: 2, maxIdle: timestamp(5), want: 2},
		"as many as came within one start": {idle: 1, maxIdle: timestamp(9), arrivals: ago(100, 110, 120, 400), want: 3, next: 200 * time.Second},
		"the busiest period counts, not the current one": {idle: 0, maxIdle: timestamp(9), arrivals: ago(1, 500, 510), want: 2, next: 90 * time.Second},
		"slow machines need more":                        {idle: 0, maxIdle: timestamp(9), arrivals: ago(100, 200, 300), startup: 5 * time.Minute, want: 3, next: 300 * time.Second},
		"a span is open at its end":                      {idle: 0, maxIdle: timestamp(9), arrivals: ago(0, 60), want: 1, next: 540 * time.Second},
		"never above the bound":                          {idle: 0, maxIdle: timestamp(2), arrivals: ago(1, 2, 3, 4), want: 2, next: 596 * time.Second},
		"old arrivals are forgotten":                     {idle: 0, maxIdle: timestamp(5), arrivals: ago(600, 601, 602), want: 0},
		"those of the future do not count":               {idle: 0, maxIdle: timestamp(5), arrivals: ago(-5), want: 0},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got, next := demand.CountWarmIdle(test.idle, test.maxIdle, test.arrivals, test.startup, getStartTime())
			if got != test.want {
				t.Errorf("WarmIdle = %d, want %d", got, test.want)
			}

			var want time.Time
			if test.next > 0 {
				want = getStartTime().Add(test.next)
			}

			if !next.Equal(want) {
				t.Errorf("next = %s, want %s", next, want)
			}
		})
	}
}

func TestWarmIdleIsBounded(t *testing.T) {
	t.Parallel()

	checkProperty(t, "within its bounds, and back to the floor when nothing comes", prop.ForAll(
		func(idle, more int, seconds []int) string {
			var arrivals []time.Time
			for _, s := range seconds {
				arrivals = append(arrivals, getStartTime().Add(-time.Duration(s)*time.Second))
			}

			limit := idle + more

			got, next := demand.CountWarmIdle(idle, &limit, arrivals, time.Minute, getStartTime())
			if got < idle || got > limit {
				return fmt.Sprintf("%d is not between %d and %d", got, idle, limit)
			}

			// Each boundary leads to a number that is not higher, and finally to the minimum.
			for range len(seconds) + 1 {
				if next.IsZero() {
					break
				}

				var later int
				if later, next = demand.CountWarmIdle(idle, &limit, arrivals, time.Minute, next); later > got {
					return "it grows though nothing comes"
				}
			}

			if !next.IsZero() {
				return "it never comes to rest"
			}

			return ""
		}, gen.IntRange(0, 5), gen.IntRange(0, 20), gen.SliceOf(gen.IntRange(0, 900)).Map(func(all []int) []int { return all[:min(len(all), 20)] })))
}
