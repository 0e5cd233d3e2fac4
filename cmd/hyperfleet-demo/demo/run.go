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

// measureTimeout bounds the looks that are taken after the run is over, whatever ended it.
const measureTimeout = 30 * time.Second

// run is the whole demo.
func run(ctx context.Context, o Options, stdout, progress io.Writer) error {
	// What the client libraries would say goes nowhere: the console tells what matters.
	log.SetLogger(logr.Discard())

	clk := clock.RealClock{}
	con := newConsole(progress, o.Plain, clk)

	defer con.close()

	s, err := newStack(o, con, clk)
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}

	working, cancel := context.WithTimeoutCause(ctx, o.Timeout,
		fmt.Errorf("gave up after %s: allow more with --timeout", o.Timeout))
	defer cancel()

	report, blame := s.session(working)

	if errors.Is(context.Cause(working), errInterrupted) {
		con.linef("interrupted: stopping what was started")

		return errors.Join(errInterrupted, s.stop(o.Keep))
	}

	return s.finish(ctx, report, blame, stdout)
}

// session runs the demo up to its report, which is never nil. blame is whoever's log
// tells more, if something went wrong.
func (s *stack) session(ctx context.Context) (report *Report, blame *procrun.Process) {
	report = &Report{Jobs: s.options.allJobs(), TotalCalls: map[string]int{}}

	err := s.start(ctx)
	if err == nil {
		err = s.watch(ctx)
	}

	if err == nil {
		err = s.work(ctx)
	}

	if errors.Is(context.Cause(ctx), errInterrupted) {
		return report, nil
	}

	blame = s.operator

	var ended *endedError
	if errors.As(err, &ended) {
		blame = ended.process
	}

	if err != nil {
		report.Problems = append(report.Problems, err.Error())
	}

	// Measured also after a failure, but not where nothing has run yet.
	if s.queuedAny {
		looking, cancel := context.WithTimeout(context.WithoutCancel(ctx), measureTimeout)
		defer cancel()

		if err := s.measure(looking, report); err != nil {
			report.Problems = append(report.Problems, err.Error())
		}
	}

	report.judge()

	if s.queuedAny && (s.options.Keep || !report.Passed) {
		looking, cancel := context.WithTimeout(context.WithoutCancel(ctx), measureTimeout)
		defer cancel()

		if err := s.saveConsoles(looking); err != nil {
			s.console.linef("%v", err)
		}
	}

	return report, blame
}

// watch counts the calls to hypervisor and CI platform, and follows claims and jobs, from here on.
func (s *stack) watch(ctx context.Context) error {
	now, err := s.hypervisor.withCalls(ctx)
	if err != nil {
		return fmt.Errorf("look at the hypervisor before the first job: %w", err)
	}

	s.baseline.calls = now.calls

	forge, err := s.forge.control.State(ctx)
	if err != nil {
		return fmt.Errorf("look at the CI platform before the first job: %w", err)
	}

	s.forgeCalls = forge.ClientRequests()

	if s.kubeBefore, err = kubeWritesOf(ctx, s.admin); err != nil {
		return err
	}

	s.tracker = newTracker(s.clock)

	// The watch outlives the context, as the control plane does.
	following, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.unfollow = stop

	return s.tracker.follow(following, s.admin, s.scheme)
}

// work queues the jobs, and waits until they are over and then until nothing is left.
func (s *stack) work(ctx context.Context) error {
	jobs, err := s.queueJobs(ctx)
	if err != nil {
		return fmt.Errorf("queue jobs: %w", err)
	}

	s.queuedAny = true
	s.console.linef("queued %d jobs of %s; the webhooks go to %s", len(jobs), s.options.Job, s.webhookURL())

	now, err := s.until(ctx, jobsInterval, func(m moments) bool { return m.jobs.over() >= len(jobs) })
	if err != nil {
		return fmt.Errorf("wait for the jobs: %d of %d are over: %w", now.jobs.over(), len(jobs), err)
	}

	s.console.linef("all %d jobs are over", len(jobs))

	if s.options.CompareWarm {
		if err := s.cool(ctx); err != nil {
			return err
		}
	}

	ctx, cancel := context.WithTimeoutCause(ctx, s.options.Cleanup,
		fmt.Errorf("gave up after %s: allow more with --cleanup-timeout", s.options.Cleanup))
	defer cancel()

	now, err = s.until(ctx, pollInterval, moments.nothingLeft)
	if err != nil {
		return fmt.Errorf("wait until nothing is left: %w", err)
	}

	s.cleanAt = now.at
	s.console.linef("nothing is left")

	return nil
}

// queueJobs queues the jobs, for each pool in a comparison.
func (s *stack) queueJobs(ctx context.Context) ([]control.Job, error) {
	spec := control.JobSpec{
		Repo: repository, Labels: s.setting.platform.labels, Count: s.options.Jobs, Duration: s.options.Job,
	}
	if !s.options.CompareWarm {
		return s.forge.control.Queue(ctx, spec)
	}

	var all []control.Job

	for _, k := range kinds() {
		spec.Labels = append(slices.Clone(s.setting.platform.labels), k.label)

		jobs, err := s.forge.control.Queue(ctx, spec)
		if err != nil {
			return nil, err
		}

		all = append(all, jobs...)
	}

	return all, nil
}

// moments is what is there at one moment.
type moments struct {
	at                         time.Time
	jobs                       jobCounts
	claims, vms, isos, runners int
	claimNames, vmNames        []string
	isoNames, runnerNames      []string
	foreignTouched             int
}

func (m moments) nothingLeft() bool { return m.claims+m.vms+m.isos+m.runners == 0 }

// look asks everybody what is there.
func (s *stack) look(ctx context.Context) (moments, error) {
	forge, err := s.forge.control.State(ctx)
	if err != nil {
		return moments{}, fmt.Errorf("look at the CI platform: %w", err)
	}

	hypervisor, err := s.hypervisor.state(ctx)
	if err != nil {
		return moments{}, fmt.Errorf("look at the hypervisor: %w", err)
	}

	m := moments{at: s.clock.Now(), jobs: countJobs(forge.Jobs)}

	for _, c := range s.tracker.claimsNow() {
		m.claimNames = append(m.claimNames, c.describe())
	}

	for i := range forge.Runners {
		m.runnerNames = append(m.runnerNames, forge.Runners[i].Name)
	}

	m.vmNames, m.isoNames, m.foreignTouched = hypervisor.since(s.baseline)
	m.claims, m.vms = len(m.claimNames), len(m.vmNames)
	m.isos, m.runners = len(m.isoNames), len(m.runnerNames)

	return m, nil
}

// lookShare is how many times longer than a look the pause after it is.
const lookShare = 10

// until looks again and again, and shows what it sees, until done says so. It gives the
// last look, also with an error.
func (s *stack) until(ctx context.Context, every time.Duration, done func(moments) bool) (moments, error) {
	var last moments

	for {
		begun := s.clock.Now()

		now, err := s.look(ctx)
		if err == nil {
			last = now
			s.console.show(s.view(now))
		}

		if err == nil && done(now) {
			return now, nil
		}

		// A process that has ended says more than the call that failed for it.
		select {
		case process := <-s.ended:
			return last, &endedError{process: process}
		default:
		}

		select {
		case <-ctx.Done():
			return last, context.Cause(ctx)
		case process := <-s.ended:
			return last, &endedError{process: process}
		case <-s.clock.After(pause(every, s.clock.Since(begun))):
		}
	}
}

// pause is the time until the next look, after one that took so long: to look at a thousand
// machines takes the time of what is measured.
func pause(every, took time.Duration) time.Duration { return max(every, lookShare*took) }

func (s *stack) view(m moments) view {
	return view{
		elapsed: s.console.elapsed(), total: max(s.options.allJobs(), m.jobs.all()),
		queued: m.jobs.queued, running: m.jobs.running, completed: m.jobs.succeeded, failed: m.jobs.failed,
		vms: m.vms, runners: m.runners, isos: m.isos, rows: s.tracker.rows(),
	}
}

// endedError is a process that ended while it was needed.
type endedError struct{ process *procrun.Process }

func (e *endedError) Error() string {
	if e.process.ExitCode() < 0 {
		return e.process.Name() + " was ended by a signal that the demo did not send"
	}

	return fmt.Sprintf("%s ended by itself with code %d", e.process.Name(), e.process.ExitCode())
}
