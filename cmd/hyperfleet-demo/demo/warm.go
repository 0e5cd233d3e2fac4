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

// Warm compares how long jobs wait for machines of three pools. The cold pool creates machines on demand,
// the stopped pool has created but not started its machines, and the idle pool has online runners.
type Warm struct {
	// Cold, Stopped and Idle are the times from the queueing of a job to its start.
	Cold    Latency `json:"cold"`
	Stopped Latency `json:"stopped"`
	Idle    Latency `json:"idle"`
	// StoppedRatio and IdleRatio are the medians of Stopped and Idle divided by the median of Cold.
	StoppedRatio float64 `json:"stoppedRatio"`
	IdleRatio    float64 `json:"idleRatio"`
}

// warmKind is one pool of the comparison. Its label is the suffix of the pool's name.
type warmKind struct {
	label string
	warm  func(jobs int32) *v1alpha1.Warm
	// isReady reports whether the pool has a warm machine for each job.
	isReady func(status v1alpha1.RunnerPoolStatus, jobs int32) bool
}

func warmKinds() []warmKind {
	return []warmKind{
		{
			label: "cold", warm: func(int32) *v1alpha1.Warm { return nil },
			isReady: func(v1alpha1.RunnerPoolStatus, int32) bool { return true },
		},
		{
			label: "stopped", warm: func(jobs int32) *v1alpha1.Warm { return &v1alpha1.Warm{Stopped: jobs} },
			isReady: func(status v1alpha1.RunnerPoolStatus, jobs int32) bool { return status.StandbyReplicas >= jobs },
		},
		{
			label: "idle", warm: func(jobs int32) *v1alpha1.Warm { return &v1alpha1.Warm{Idle: jobs} },
			isReady: func(status v1alpha1.RunnerPoolStatus, jobs int32) bool { return status.ReadyReplicas >= jobs },
		},
	}
}

// newWarmPools returns the pools of the comparison. The limit of each pool is twice the number of jobs, so
// that no job waits for the end of another job.
func (s demoSettings) newWarmPools(o Options) []client.Object {
	out := make([]client.Object, 0, len(warmKinds()))

	for _, k := range warmKinds() {
		pool := s.newPool(o)
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

// waitForWarmMachines waits until all pools have their warm machines.
func (s *stack) waitForWarmMachines(ctx context.Context) (string, error) {
	ticker := s.clock.NewTicker(jobsInterval)
	defer ticker.Stop()

	for {
		missing, err := s.missingWarmMachines(ctx)
		if err != nil || missing == "" {
			return "", err
		}

		select {
		case <-ctx.Done():
			return "", fmt.Errorf("wait for warm machines: %w: %s", context.Cause(ctx), missing)
		case process := <-s.exitedProcesses:
			return "", &processExitError{process: process}
		case <-ticker.C():
		}
	}
}

// missingWarmMachines describes the first pool that does not have its warm machines yet. It returns an
// empty string if all pools have them.
func (s *stack) missingWarmMachines(ctx context.Context) (string, error) {
	for _, k := range warmKinds() {
		var pool v1alpha1.RunnerPool
		if err := s.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: objectName + "-" + k.label}, &pool); err != nil {
			return "", fmt.Errorf("get pool: %w", err)
		}

		if !k.isReady(pool.Status, int32(s.options.Jobs)) { //nolint:gosec // validated
			return fmt.Sprintf("RunnerPool %s: %d ready, %d on standby", pool.Name,
				pool.Status.ReadyReplicas, pool.Status.StandbyReplicas), nil
		}
	}

	return "", nil
}

// removeWarmMachines removes spec.scaling.warm from the pools, so that the operator deletes the warm
// machines before the final check.
func (s *stack) removeWarmMachines(ctx context.Context) error {
	var errs []error

	for _, k := range warmKinds() {
		pool := &v1alpha1.RunnerPool{}
		pool.Namespace, pool.Name = namespace, objectName+"-"+k.label
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"scaling":{"warm":null}}}`))

		errs = append(errs, s.client.Patch(ctx, pool, patch))
	}

	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove the warm machines: %w", err)
	}

	return nil
}

// compareWarm computes the waiting times of jobs by the pool whose label they have.
func compareWarm(jobs []control.Job) *Warm {
	waits := map[string][]time.Duration{}

	for i := range jobs {
		job := &jobs[i]
		for _, k := range warmKinds() {
			if slices.Contains(job.Labels, k.label) && !job.StartedAt.IsZero() {
				waits[k.label] = append(waits[k.label], job.StartedAt.Sub(job.QueuedAt))
			}
		}
	}

	out := &Warm{
		Cold: summarizeLatency(waits["cold"]), Stopped: summarizeLatency(waits["stopped"]), Idle: summarizeLatency(waits["idle"]),
	}
	if out.Cold.P50 > 0 {
		out.StoppedRatio = round3(out.Stopped.P50 / out.Cold.P50)
		out.IdleRatio = round3(out.Idle.P50 / out.Cold.P50)
	}

	return out
}

// formatText returns the comparison as a table.
func (w *Warm) formatText() string {
	line := func(name string, l Latency, ratio float64) string {
		return fmt.Sprintf("  %-22s %7.2fs %7.2fs %7.2fs %6d  ratio %.2f\n", name, l.P50, l.P95, l.Max, l.Count, ratio)
	}

	return fmt.Sprintf("\n  %-22s %8s %8s %8s %6s\n", "QUEUED -> RUNNING", "P50", "P95", "MAX", "COUNT") +
		line("cold", w.Cold, 1) + line("warm, stopped", w.Stopped, w.StoppedRatio) +
		line("warm, idle", w.Idle, w.IdleRatio)
}
