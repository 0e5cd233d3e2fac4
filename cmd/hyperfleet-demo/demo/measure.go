// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// measure sets the numbers in the report.
func (s *stack) measure(ctx context.Context, r *Report) error {
	final, err := s.observe(ctx)
	if err != nil {
		return fmt.Errorf("measure: %w", err)
	}

	s.leftovers = final
	r.JobsCompleted, r.JobsFailed = final.jobs.succeeded, final.jobs.failed
	r.ForeignVMsTouched = final.foreignTouched
	r.VMsLeft, r.ClaimsLeft = final.vms+final.foreignTouched, final.claims
	r.RunnersLeft, r.ISOsLeft = final.runners, final.isos

	makespan := computeSpan(final.jobs.queueTimes, final.jobs.endTimes)
	r.MakespanSeconds = seconds(makespan)

	if last := latestTime(final.jobs.endTimes); !s.cleanTime.IsZero() && !last.IsZero() {
		r.CleanupSeconds = seconds(max(s.cleanTime.Sub(last), 0))
	}

	r.RSSMiB = round3(readPeakMemory(s.operator.PID()) / mebibyte)

	return errors.Join(s.measureForge(ctx, r), s.hypervisor.measure(ctx, s, r), s.measureKubernetes(ctx, r))
}

func (s *stack) measureForge(ctx context.Context, r *Report) error {
	state, err := s.forge.control.State(ctx)
	if err != nil {
		return fmt.Errorf("measure the CI platform: %w", err)
	}

	r.Webhooks = Webhooks{
		Delivered: state.Webhooks.Delivered, Failed: state.Webhooks.Failed,
		Lost: state.Webhooks.Lost, Duplicated: state.Webhooks.Duplicated,
	}

	r.countPlatformCalls(s.forgeBaseline, state.ClientRequests())

	claims := s.tracker.allClaims()
	r.Latencies = computeLatencies(s.tracker.receiveTimes(), claims, state.Jobs)
	r.Latencies.QueuedToClone = queuedToCloneLatency(state.Jobs, claims)

	if s.options.CompareWarm {
		r.Warm = compareWarm(state.Jobs)
	}

	broken, err := s.forge.control.Violations(ctx)
	if err != nil {
		return fmt.Errorf("measure the CI platform: %w", err)
	}

	for i := range broken {
		s.violations = append(s.violations, fmt.Sprintf("forgesim: %s: %s %s: %s",
			broken[i].Kind, broken[i].Method, broken[i].Path, broken[i].Message))
	}

	r.Violations += len(broken)

	return nil
}

// countPlatformCalls sets the numbers of the operator's calls to the CI platform between two measurements.
func (r *Report) countPlatformCalls(baseline, current map[string]int) {
	r.PlatformCalls = map[string]int{}
	total := 0

	for name, count := range current {
		if count -= baseline[name]; count > 0 {
			r.PlatformCalls[name] = count
			total += count
		}
	}

	if r.Jobs > 0 {
		r.PlatformCallsPerJob = round3(float64(total) / float64(r.Jobs))
	}
}

const mebibyte = 1 << 20

// readPeakMemory returns the peak resident memory of a process in bytes (VmHWM in proc(5)). It returns 0
// on systems without /proc.
func readPeakMemory(pid int) float64 {
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0
	}

	return parsePeakMemory(string(status))
}

func parsePeakMemory(status string) float64 {
	for line := range strings.Lines(status) {
		value, ok := strings.CutPrefix(line, "VmHWM:")
		if !ok {
			continue
		}

		kib, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 64)
		if err != nil {
			return 0
		}

		return kib * 1024
	}

	return 0
}
