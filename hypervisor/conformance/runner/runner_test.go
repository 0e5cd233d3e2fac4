// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runner_test

import (
	"slices"
	"sync/atomic"
	"testing"

	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance/runner"
)

var (
	_ conformance.Test[*runner.T]  = (*runner.T)(nil)
	_ conformance.Test[*testing.T] = (*testing.T)(nil)
)

func TestCasesEndAlone(t *testing.T) {
	t.Parallel()

	var order []string

	results, err := runner.Run(t.Context(), runner.Options{}, func(r *runner.T) {
		r.Run("fatal", func(c *runner.T) {
			c.Cleanup(func() { order = append(order, "first cleanup") })
			c.Cleanup(func() { order = append(order, "last cleanup") })
			c.Fatal("the", "reason")
			order = append(order, "never")
		})
		r.Run("panic", func(*runner.T) { panic("oops") })
		r.Run("skip", func(c *runner.T) { c.Skip("no TPM") })
		r.Run("pass", func(c *runner.T) { c.Log("quiet") })
	})
	if err != nil {
		t.Fatal(err)
	}

	if want := []string{"last cleanup", "first cleanup"}; !slices.Equal(order, want) {
		t.Errorf("want %v, got %v", want, order)
	}

	if got := runner.Count(results); got[runner.Failed] != 2 || got[runner.Skipped] != 1 || got[runner.Passed] != 1 {
		t.Errorf("got %v of %+v", got, results)
	}

	if results[0].Messages[0] != "the reason" || results[3].Messages != nil {
		t.Errorf("got %+v", results)
	}
}

func TestParallelCasesWaitForTheirParent(t *testing.T) {
	t.Parallel()

	var running, most, alone atomic.Int32

	results, err := runner.Run(t.Context(), runner.Options{Parallel: 2}, func(r *runner.T) {
		r.Run("group", func(group *runner.T) {
			meet := make(chan struct{})

			for _, name := range []string{"a", "b"} {
				group.Run(name, func(c *runner.T) {
					c.Parallel()
					most.Store(max(most.Load(), running.Add(1)))

					// Both cases are needed here, so they run at the same time.
					select {
					case meet <- struct{}{}:
					case <-meet:
					}

					running.Add(-1)

					if c.Context().Err() != nil {
						c.Error("the context has ended")
					}
				})
			}

			group.Run("alone", func(*runner.T) { alone.Store(running.Load()) })
		})
	})
	if err != nil || runner.Count(results)[runner.Passed] != 3 {
		t.Fatalf("got %+v (%v)", results, err)
	}

	if alone.Load() != 0 {
		t.Errorf("%d parallel cases ran beside the case that runs alone", alone.Load())
	}
}

func TestOnlySelectsByLevel(t *testing.T) {
	t.Parallel()

	results, err := runner.Run(t.Context(), runner.Options{Only: "crash/^2$"}, func(r *runner.T) {
		for _, group := range []string{"cases", "crashes"} {
			r.Run(group, func(g *runner.T) {
				for _, name := range []string{"1", "2", "12"} {
					g.Run(name, func(*runner.T) {})
				}
			})
		}
	})
	if err != nil || len(results) != 1 || results[0].Name != "crashes/2" {
		t.Errorf("got %+v (%v)", results, err)
	}

	// A group without a selected case has not passed.
	results, err = runner.Run(t.Context(), runner.Options{Only: "crashes/none"}, func(r *runner.T) {
		r.Run("crashes", func(g *runner.T) { g.Run("1", func(*runner.T) {}) })
	})
	if err != nil || len(results) != 0 {
		t.Errorf("want no case, got %+v (%v)", results, err)
	}

	if _, err := runner.Run(t.Context(), runner.Options{Only: "("}, func(*runner.T) {}); err == nil {
		t.Error("want an error for an invalid expression")
	}
}
