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

// measure fills the report's numbers from what there is to be seen.
func (s *stack) measure(ctx context.Context, r *Report) error {
	now, err := s.look(ctx)
	if err != nil {
		return fmt.Errorf("measure: %w", err)
	}

	s.left = now
	r.JobsCompleted, r.JobsFailed = now.jobs.succeeded, now.jobs.failed
	r.ForeignVMsTouched = now.foreignTouched
	r.VMsLeft, r.ClaimsLeft = now.vms+now.foreignTouched, now.claims
	r.RunnersLeft, r.ISOsLeft = now.runners, now.isos

	makespan := span(now.jobs.starts, now.jobs.ends)
	r.MakespanSeconds = seconds(makespan)

	if last := latest(now.jobs.ends); !s.cleanAt.IsZero() && !last.IsZero() {
		r.CleanupSeconds = seconds(max(s.cleanAt.Sub(last), 0))
	}

	r.Latencies = latenciesOf(s.tracker.jobsReceived(), s.tracker.allClaims())
	r.RSSMiB = round3(peakMemory(s.operator.PID()) / mebibyte)

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

	r.countPlatformCalls(s.forgeCalls, state.ClientRequests())
	r.Latencies.QueuedToClone = queuedToClone(state.Jobs, s.tracker.allClaims())

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

// countPlatformCalls takes over the operator's calls to the CI platform since before.
func (r *Report) countPlatformCalls(before, now map[string]int) {
	r.PlatformCalls = map[string]int{}
	total := 0

	for name, count := range now {
		if count -= before[name]; count > 0 {
			r.PlatformCalls[name] = count
			total += count
		}
	}

	if r.Jobs > 0 {
		r.PlatformCallsPerJob = round3(float64(total) / float64(r.Jobs))
	}
}

const mebibyte = 1 << 20

// peakMemory reads a process's peak resident memory in bytes: VmHWM of proc(5). It is 0
// on systems without it.
func peakMemory(pid int) float64 {
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0
	}

	return parsePeak(string(status))
}

func parsePeak(status string) float64 {
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
