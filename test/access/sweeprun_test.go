// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package access_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	testclock "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/platform/sweep"
)

func TestAnIntervalRunsAgainAfterATrouble(t *testing.T) {
	w := newWorld(t)
	timer := testclock.NewFakeClock(time.Now().Add(time.Hour))
	w.clock, w.config.Interval = timer, time.Minute
	o := w.make("ConfigMap", "gone", newID())
	w.fleet.list = plain(503, "", "")

	registry := prometheus.NewRegistry()
	reports := make(chan sweep.Report, 10)
	options := w.options()
	options.Registry = registry
	options.Done = func(r sweep.Report) { reports <- r }

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()

	ended := make(chan sweep.Report, 1)

	go func() {
		last, err := sweep.Run(ctx, options)
		if err != nil {
			t.Error(err)
		}
		ended <- last
	}()

	wait := func() {
		for !timer.HasWaiters() && ctx.Err() == nil {
			time.Sleep(10 * time.Millisecond)
		}
	}

	wait()
	w.fleet.mu.Lock()
	w.fleet.list = nil
	w.fleet.mu.Unlock()
	timer.Step(time.Minute)

	select {
	case report := <-reports:
		if got := result(report, "gone"); got != "Deleted" || w.left(o) {
			t.Errorf("%q", got)
		}
	case <-ctx.Done():
		t.Fatal("no second run")
	}

	wait()
	cancel()

	if last := <-ended; last.Outcomes[sweep.Deleted] != 1 {
		t.Errorf("last report %+v", last)
	}

	for name, want := range map[string]float64{
		"error": 1, "ok": 1, "stopped": 0, "incomplete": 0,
	} {
		if got := counted(t, registry, "hyperfleet_sweep_runs_total", name); got != want {
			t.Errorf("runs with result %s: %v, want %v", name, got, want)
		}
	}

	if got := counted(t, registry, "hyperfleet_sweep_deletions_total", ""); got != 1 {
		t.Errorf("%v deletions counted", got)
	}

	if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
		t.Errorf("metrics: %v, %v", problems, err)
	}
}

func counted(t *testing.T, registry *prometheus.Registry, name, label string) float64 {
	t.Helper()

	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}

	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if family.GetName() == name && (label == "" || metric.GetLabel()[0].GetValue() == label) {
				return metric.GetCounter().GetValue()
			}
		}
	}

	t.Errorf("no series %s %s", name, label)

	return 0
}

func TestOneReplicaSweepsAndAnotherTakesOver(t *testing.T) {
	w := newWorld(t)
	w.config.Interval, w.config.LeaderElection, w.config.LeaseNamespace = time.Minute, true, w.namespace

	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()

	var (
		mu  sync.Mutex
		ran []int
		all sync.WaitGroup
	)

	first := make(chan int, 10)
	stop := make([]context.CancelFunc, 2)

	for i := range stop {
		var life context.Context

		life, stop[i] = context.WithCancel(ctx)
		options := w.options()
		options.Done = func(sweep.Report) {
			mu.Lock()
			defer mu.Unlock()
			ran = append(ran, i)
			first <- i
		}

		all.Go(func() {
			if _, err := sweep.Run(life, options); err != nil {
				t.Error(err)
			}
		})
	}

	leader := -1
	select {
	case leader = <-first:
	case <-ctx.Done():
		t.Fatal("nobody leads")
	}

	stop[leader]()

	select {
	case next := <-first:
		if next == leader {
			t.Error("a replica that was stopped ran again")
		}
	case <-ctx.Done():
		t.Fatal("nobody takes over")
	}

	cancel()
	all.Wait()

	if len(ran) != 2 || slices.Index(ran, leader) != 0 {
		t.Errorf("runs by replicas: %v; one at a time is to run", ran)
	}
}
