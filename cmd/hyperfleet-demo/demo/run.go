// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/hyperfleet/hyperfleet/kit/procrun"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
)

// measureTimeout is the timeout of the measurements after a run, also after one that failed.
const measureTimeout = 30 * time.Second

// run runs the demo and prints its report.
func run(ctx context.Context, o Options, stdout, progress io.Writer) error {
	// Discard the log messages of client libraries, because the console shows the relevant ones.
	log.SetLogger(logr.Discard())

	clk := clock.RealClock{}
	con := newConsole(progress, clk)

	defer con.close()

	s, err := newStack(o, con, clk)
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}

	runCtx, cancel := context.WithTimeoutCause(ctx, o.Timeout,
		fmt.Errorf("timed out after %s: set a longer --timeout", o.Timeout))
	defer cancel()

	report, suspect := s.runSession(runCtx)

	if errors.Is(context.Cause(runCtx), errInterrupted) {
		con.printf("interrupted: stopping all processes")

		return errors.Join(errInterrupted, s.stop(o.Keep))
	}

	return s.finish(ctx, report, suspect, stdout)
}

// runSession starts all processes, runs the jobs and returns the report, which is never nil. suspect is
// the process whose log most likely explains a failure: a process that exited, or else the operator.
// suspect may be nil.
func (s *stack) runSession(ctx context.Context) (report *Report, suspect *procrun.Process) {
	report = &Report{Jobs: s.options.totalJobs(), TotalCalls: map[string]int{}}

	err := s.start(ctx)
	if err == nil {
		err = s.startTracking(ctx)
	}

	if err == nil {
		err = s.runJobs(ctx)
	}

	if errors.Is(context.Cause(ctx), errInterrupted) {
		return report, nil
	}

	suspect = s.operator

	var ended *processExitError
	if errors.As(err, &ended) {
		suspect = ended.process
	}

	if err != nil {
		report.Problems = append(report.Problems, err.Error())
	}

	// Measure also after a failure, unless no job was queued.
	if s.hasQueuedJobs {
		measureCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), measureTimeout)
		defer cancel()

		if err := s.measure(measureCtx, report); err != nil {
			report.Problems = append(report.Problems, err.Error())
		}
	}

	report.evaluate()

	if s.hasQueuedJobs && (s.options.Keep || !report.Passed) {
		consoleCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), measureTimeout)
		defer cancel()

		if err := s.saveConsoles(consoleCtx); err != nil {
			s.console.printf("%v", err)
		}
	}

	return report, suspect
}

// startTracking records how many calls the hypervisor, the CI platform and the API server have received
// before the first job, and starts to watch claims and jobs.
func (s *stack) startTracking(ctx context.Context) error {
	state, err := s.hypervisor.stateWithCalls(ctx)
	if err != nil {
		return fmt.Errorf("read the hypervisor's state before the first job: %w", err)
	}

	s.baseline.calls = state.calls

	forge, err := s.forge.control.State(ctx)
	if err != nil {
		return fmt.Errorf("read the CI platform's state before the first job: %w", err)
	}

	s.forgeBaseline = forge.ClientRequests()

	if s.kubeBaseline, err = fetchKubeWrites(ctx, s.admin); err != nil {
		return err
	}

	s.tracker = newTracker(s.clock)

	// The control plane keeps running after ctx is done, and so does the watch.
	watchCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stopTracker = stop

	return s.tracker.start(watchCtx, s.admin, s.scheme)
}

// runJobs queues the jobs, waits until all of them have finished, and then waits until all machines,
// claims, runners and ISOs are deleted.
func (s *stack) runJobs(ctx context.Context) error {
	jobs, err := s.queueJobs(ctx)
	if err != nil {
		return fmt.Errorf("queue jobs: %w", err)
	}

	s.hasQueuedJobs = true
	s.console.printf("queued %d jobs of %s; the webhooks go to %s", len(jobs), s.options.Job, s.webhookURL())

	state, err := s.pollUntil(ctx, jobsInterval, func(m observation) bool { return m.jobs.finished() >= len(jobs) })
	if err != nil {
		return fmt.Errorf("wait for the jobs: %d of %d have finished: %w", state.jobs.finished(), len(jobs), err)
	}

	s.console.printf("all %d jobs have finished", len(jobs))

	if s.options.CompareWarm {
		if err := s.removeWarmMachines(ctx); err != nil {
			return err
		}
	}

	ctx, cancel := context.WithTimeoutCause(ctx, s.options.cleanupTimeout,
		fmt.Errorf("timed out %s after the end of the last job", s.options.cleanupTimeout))
	defer cancel()

	state, err = s.pollUntil(ctx, pollInterval, observation.isClean)
	if err != nil {
		return fmt.Errorf("wait until nothing is left: %w", err)
	}

	s.cleanTime = state.time
	s.console.printf("nothing is left")

	return nil
}

// queueJobs queues the jobs. With --compare-warm, it queues them once for each pool.
func (s *stack) queueJobs(ctx context.Context) ([]control.Job, error) {
	spec := control.JobSpec{
		Repo: repository, Labels: s.settings.platform.labels, Count: s.options.Jobs, Duration: s.options.Job,
	}
	if !s.options.CompareWarm {
		return s.forge.control.Queue(ctx, spec)
	}

	var all []control.Job

	for _, k := range warmKinds() {
		spec.Labels = append(slices.Clone(s.settings.platform.labels), k.label)

		jobs, err := s.forge.control.Queue(ctx, spec)
		if err != nil {
			return nil, err
		}

		all = append(all, jobs...)
	}

	return all, nil
}

// observation is the state of all systems at one point in time.
type observation struct {
	time                       time.Time
	jobs                       jobCounts
	claims, vms, isos, runners int
	claimNames, vmNames        []string
	isoNames, runnerNames      []string
	foreignTouched             int
}

func (m observation) isClean() bool { return m.claims+m.vms+m.isos+m.runners == 0 }

// observe reads the state of the CI platform, the hypervisor and the claims.
func (s *stack) observe(ctx context.Context) (observation, error) {
	forge, err := s.forge.control.State(ctx)
	if err != nil {
		return observation{}, fmt.Errorf("read the CI platform's state: %w", err)
	}

	hypervisor, err := s.hypervisor.state(ctx)
	if err != nil {
		return observation{}, fmt.Errorf("read the hypervisor's state: %w", err)
	}

	m := observation{time: s.clock.Now(), jobs: countJobs(forge.Jobs)}

	for _, c := range s.tracker.currentClaims() {
		m.claimNames = append(m.claimNames, c.describe())
	}

	for i := range forge.Runners {
		m.runnerNames = append(m.runnerNames, forge.Runners[i].Name)
	}

	m.vmNames, m.isoNames, m.foreignTouched = hypervisor.diff(s.baseline)
	m.claims, m.vms = len(m.claimNames), len(m.vmNames)
	m.isos, m.runners = len(m.isoNames), len(m.runnerNames)

	return m, nil
}

// observeDelayFactor is the minimum ratio between the delay after an observation and the time that the
// observation took.
const observeDelayFactor = 10

// pollUntil observes the systems and shows the result until isDone returns true. It returns the last
// observation, also with an error.
func (s *stack) pollUntil(ctx context.Context, every time.Duration, isDone func(observation) bool) (observation, error) {
	var last observation

	for {
		start := s.clock.Now()

		state, err := s.observe(ctx)
		if err == nil {
			last = state
			s.console.show(s.newView(state))
		}

		if err == nil && isDone(state) {
			return state, nil
		}

		// If a process has exited, report the exit in place of the failed call.
		select {
		case process := <-s.exitedProcesses:
			return last, &processExitError{process: process}
		default:
		}

		select {
		case <-ctx.Done():
			return last, context.Cause(ctx)
		case process := <-s.exitedProcesses:
			return last, &processExitError{process: process}
		case <-s.clock.After(observeDelay(every, s.clock.Since(start))):
		}
	}
}

// observeDelay returns the delay until the next observation, after one that took the given time. The delay
// grows with that time, because observing a thousand machines takes CPU time from the measured processes.
func observeDelay(every, took time.Duration) time.Duration {
	return max(every, observeDelayFactor*took)
}

func (s *stack) newView(m observation) view {
	return view{
		elapsed: s.console.elapsed(), total: max(s.options.totalJobs(), m.jobs.total()),
		queued: m.jobs.queued, running: m.jobs.running, completed: m.jobs.succeeded, failed: m.jobs.failed,
		vms: m.vms, runners: m.runners, isos: m.isos, rows: s.tracker.rows(),
	}
}

// processExitError reports that a process exited while the demo still needed it.
type processExitError struct{ process *procrun.Process }

func (e *processExitError) Error() string {
	if e.process.ExitCode() < 0 {
		return e.process.Name() + " was killed by a signal that the demo did not send"
	}

	return fmt.Sprintf("%s exited unexpectedly with code %d", e.process.Name(), e.process.ExitCode())
}
