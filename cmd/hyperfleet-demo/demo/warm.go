// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
)

// Warm compares how long jobs wait for machines of three pools: one that makes them when
// jobs come, one that has made and not started them, and one whose runners are online.
type Warm struct {
	// Cold, Stopped and Idle are from a job's being queued to its running.
	Cold    Latency `json:"cold"`
	Stopped Latency `json:"stopped"`
	Idle    Latency `json:"idle"`
	// StoppedRatio and IdleRatio are their medians by the one of Cold.
	StoppedRatio float64 `json:"stoppedRatio"`
	IdleRatio    float64 `json:"idleRatio"`
}

// kind is a pool of the comparison, named after its label.
type kind struct {
	label string
	warm  func(jobs int32) *v1alpha1.Warm
	// ready tells whether the pool has as many warm machines as jobs will come.
	ready func(status v1alpha1.RunnerPoolStatus, jobs int32) bool
}

func kinds() []kind {
	return []kind{
		{
			"cold", func(int32) *v1alpha1.Warm { return nil },
			func(v1alpha1.RunnerPoolStatus, int32) bool { return true },
		},
		{
			"stopped", func(jobs int32) *v1alpha1.Warm { return &v1alpha1.Warm{Stopped: jobs} },
			func(status v1alpha1.RunnerPoolStatus, jobs int32) bool { return status.StandbyReplicas >= jobs },
		},
		{
			"idle", func(jobs int32) *v1alpha1.Warm { return &v1alpha1.Warm{Idle: jobs} },
			func(status v1alpha1.RunnerPoolStatus, jobs int32) bool { return status.ReadyReplicas >= jobs },
		},
	}
}

// warmPools are the comparison's pools. Each has room for its warm machines and as many
// more, so that none waits for another to end.
func (s setting) warmPools(o Options) []client.Object {
	out := make([]client.Object, 0, len(kinds()))

	for _, k := range kinds() {
		pool := s.pool(o)
		pool.Name = objectName + "-" + k.label
		work := s.platform.workload(s, append(slices.Clone(s.platform.labels), k.label))
		work.Webhook = pool.Spec.Workload.Webhook
		pool.Spec.Workload = work
		pool.Spec.Scaling.MaxReplicas = int32(2 * o.Jobs) //nolint:gosec // validated
		pool.Spec.Scaling.Warm = k.warm(int32(o.Jobs))    //nolint:gosec // validated
		out = append(out, pool)
	}

	return out
}

// waitWarm waits until the pools have their warm machines.
func (s *stack) waitWarm(ctx context.Context) (string, error) {
	ticker := s.clock.NewTicker(jobsInterval)
	defer ticker.Stop()

	for {
		missing, err := s.notWarm(ctx)
		if err != nil || missing == "" {
			return "", err
		}

		select {
		case <-ctx.Done():
			return "", fmt.Errorf("wait for warm machines: %w: %s", context.Cause(ctx), missing)
		case process := <-s.ended:
			return "", &endedError{process: process}
		case <-ticker.C():
		}
	}
}

// notWarm names a pool that has not got its warm machines.
func (s *stack) notWarm(ctx context.Context) (string, error) {
	for _, k := range kinds() {
		var pool v1alpha1.RunnerPool
		if err := s.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: objectName + "-" + k.label}, &pool); err != nil {
			return "", fmt.Errorf("get pool: %w", err)
		}

		if !k.ready(pool.Status, int32(s.options.Jobs)) { //nolint:gosec // validated
			return fmt.Sprintf("RunnerPool %s: %d ready, %d on standby", pool.Name,
				pool.Status.ReadyReplicas, pool.Status.StandbyReplicas), nil
		}
	}

	return "", nil
}

// cool takes the warm machines away, so that nothing is left in the end.
func (s *stack) cool(ctx context.Context) error {
	var errs []error

	for _, k := range kinds() {
		pool := &v1alpha1.RunnerPool{}
		pool.Namespace, pool.Name = namespace, objectName+"-"+k.label
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"scaling":{"warm":null}}}`))

		errs = append(errs, s.client.Patch(ctx, pool, patch))
	}

	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("take the warm machines away: %w", err)
	}

	return nil
}

// compareWarm measures the jobs by the pool whose label they asked for.
func compareWarm(jobs []control.Job) *Warm {
	waits := map[string][]time.Duration{}

	for i := range jobs {
		job := &jobs[i]
		for _, k := range kinds() {
			if slices.Contains(job.Labels, k.label) && !job.StartedAt.IsZero() {
				waits[k.label] = append(waits[k.label], job.StartedAt.Sub(job.QueuedAt))
			}
		}
	}

	out := &Warm{Cold: latencyOf(waits["cold"]), Stopped: latencyOf(waits["stopped"]), Idle: latencyOf(waits["idle"])}
	if out.Cold.P50 > 0 {
		out.StoppedRatio = round3(out.Stopped.P50 / out.Cold.P50)
		out.IdleRatio = round3(out.Idle.P50 / out.Cold.P50)
	}

	return out
}

// text writes the comparison for people.
func (w *Warm) text() string {
	line := func(name string, l Latency, ratio float64) string {
		return fmt.Sprintf("  %-22s %7.2fs %7.2fs %7.2fs %6d  ratio %.2f\n", name, l.P50, l.P95, l.Max, l.Count, ratio)
	}

	return fmt.Sprintf("\n  %-22s %8s %8s %8s %6s\n", "QUEUED -> RUNNING", "P50", "P95", "MAX", "COUNT") +
		line("made when needed", w.Cold, 1) + line("warm, stopped", w.Stopped, w.StoppedRatio) +
		line("warm, idle", w.Idle, w.IdleRatio)
}
