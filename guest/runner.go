// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/hyperfleet/hyperfleet/api/guest"
)

// maxRestarts is how often a runner may be restarted, by the service or by its own script.
const maxRestarts = 5

// terminationGrace is how long a runner may take to stop if the service itself is stopped, which has to end within
// 20 seconds.
const terminationGrace = 6 * time.Second

// exitTimeout is how long a runner may take to exit after its job.
const exitTimeout = 2 * time.Minute

const killSignal = syscall.SIGKILL

// runRunner runs the runner until it has finished its one job or is stopped. It always returns an error,
// which says how the machine ends.
func (s *Service) runRunner(ctx context.Context, cfg *guest.Config) error {
	runAs, err := s.findAccount()
	if err != nil {
		return newFailure(guest.ReasonRunnerFailed, "%w", err)
	}

	if runAs == nil {
		s.removeIdentity() // the job runs as root and could use the identity; the runner does not need it
	}

	p := platformFor(cfg.Platform)
	w := &runnerWatch{
		service: s, cfg: cfg, platform: p, launch: p.newLaunch(s, cfg), job: cfg.JobID,
		events: make(chan event, 64), closed: make(chan struct{}),
	}

	defer close(w.closed)

	if w.launch.hasHooks && !s.hasUserHook() {
		h, err := s.newHooks(runAs, w.handleHook)
		if err != nil {
			s.log.Warn("the runner's hooks are not used: the start of a job is only read from its output", "error", err.Error())
		}

		defer h.close()

		if h != nil {
			w.launch.env = append(w.launch.env, h.env...)
		}
	}

	w.idleTimer = newTimeout(s.clock, cfg.IdleTimeout.Value())

	for {
		code, err := w.runOnce(ctx, runAs)
		if err != nil {
			return err
		}

		if e := w.endAfterExit(code); e != nil {
			return e
		}

		w.restarts++

		s.log.Warn("the runner has exited and is restarted", "exitCode", code, "restart", w.restarts)

		if err := sleep(ctx, s.clock, s.opts.RestartDelay); err != nil {
			return newFailure(guest.ReasonTerminated, "the service was stopped before it could restart the runner")
		}
	}
}

// runnerWatch holds the state of the runner.
type runnerWatch struct {
	service  *Service
	cfg      *guest.Config
	platform platform
	launch   launch
	events   chan event
	closed   chan struct{}

	wasOnline      bool   // the runner was online at least once
	job            string // name of the job that the runner has started
	hasJobStarted  bool   // a job has started
	hasJobFinished bool   // the job has finished
	jobMessage     string // job's result in the runner's output; "" if the exit code determines it
	jobResult      string // job's result as the platform names it
	exitReason     string // reason that the runner's script printed for its exit
	isRetrying     bool   // the runner is being stopped in order to restart it
	restarts       int
	lastOutput     lastLines

	// The timers limit the wait for a job, the job, and the wait for the runner's exit after the job.
	idleTimer, jobTimer, exitTimer <-chan time.Time
	// killTimer fires when a runner that has not stopped in time is killed.
	killTimer <-chan time.Time

	stopReason *endError // why the service is stopping the runner; nil if it is not
}

// runOnce runs the runner once and returns its exit code.
func (w *runnerWatch) runOnce(ctx context.Context, runAs *account) (int, error) {
	s := w.service
	cmd := s.newCommand(context.WithoutCancel(ctx), w.launch, runAs)
	out := s.newOutputWriter(w.handleLine)
	cmd.Stdout, cmd.Stderr = out, out

	started, exited := make(chan error, 1), make(chan error, 1)

	go func() {
		// The kernel also sends Pdeathsig when the thread that started the runner ends, so the thread must
		// live as long as the runner.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()

		err := startGroup(cmd)
		started <- err

		if err != nil {
			return
		}

		err = cmd.Wait()

		out.flush()

		exited <- err
	}()

	if err := <-started; err != nil {
		return 0, newFailure(guest.ReasonRunnerFailed, "start runner: %w", err)
	}

	if w.launch.jobID != "" {
		w.sendEvent(event{kind: eventRunning, text: w.launch.jobID})
	}

	err := w.handleUntilExit(ctx, cmd, exited)
	_ = signalGroup(cmd, killSignal) // kill processes that the job has left running

	var exit *exec.ExitError

	switch {
	case err == nil, errors.Is(err, exec.ErrWaitDelay):
		return exitOK, nil
	case errors.As(err, &exit):
		return exitCode(exit), nil
	default:
		return 0, newFailure(guest.ReasonRunnerFailed, "wait for runner: %w", err)
	}
}

// exitCode returns the exit code of a program. If a signal ended the program, it returns signalBase plus the
// number of the signal, as shells do.
func exitCode(exit *exec.ExitError) int {
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return signalBase + int(status.Signal())
	}

	return exit.ExitCode()
}

// handleUntilExit handles events and timeouts until the runner has exited. It returns the error that it receives from exited.
func (w *runnerWatch) handleUntilExit(ctx context.Context, cmd *exec.Cmd, exited <-chan error) error {
	done := ctx.Done()
	w.killTimer = nil

	for {
		select {
		case err := <-exited:
			w.drainEvents()

			return err
		case e := <-w.events:
			wasRetrying := w.isRetrying
			w.stopRunner(cmd, w.handleEvent(e))

			if w.isRetrying && !wasRetrying { // the event asks for a restart
				w.signalRunner(cmd, w.launch.abort, w.service.opts.StopGrace)
			}
		case <-w.idleTimer:
			w.idleTimer = nil
			if !w.hasJobStarted {
				w.stopRunner(cmd, w.newIdleTimeout())
			}
		case <-w.jobTimer:
			w.jobTimer = nil
			w.stopRunner(cmd, newFailure(guest.ReasonJobTimeout, "%s took more than %s", w.jobName(), w.cfg.JobTimeout.Value()))
		case <-w.exitTimer:
			w.exitTimer = nil
			w.stopRunner(cmd, w.newJobDone())
		case <-done:
			done = nil // once
			w.stopRunner(cmd, newFinish(guest.ReasonTerminated, "the service was stopped"))
		case <-w.killTimer:
			w.killTimer = nil
			w.service.log.Warn("the runner did not stop in time and is killed")
			_ = signalGroup(cmd, killSignal)
		}
	}
}

// stopRunner signals the runner to stop and records the reason. It does nothing if reason is nil or if the
// runner is already being stopped.
func (w *runnerWatch) stopRunner(cmd *exec.Cmd, reason *endError) {
	if reason == nil || w.stopReason != nil {
		return
	}

	w.stopReason = reason

	switch {
	case w.hasJobFinished:
		w.stopReason = w.newJobDone()
	case w.launch.jobID != "": // the platform does not know the job's result, so the service sets it
		reason.result = resultCancelled
		if reason.reason == guest.ReasonJobTimeout {
			reason.result = resultTimedOut
		}
	}

	sig, grace := w.launch.abort, w.service.opts.StopGrace

	switch reason.reason {
	case guest.ReasonIdleTimeout:
		sig = w.launch.quit
		grace = cmp.Or(w.launch.grace, grace)
	case guest.ReasonTerminated:
		grace = min(grace, terminationGrace)
	}

	w.service.log.Info("hyperfleet: stopping the runner", "reason", reason.reason)
	w.signalRunner(cmd, sig, grace)
}

// signalRunner sends a signal to the runner and starts the timer after which the runner is killed.
func (w *runnerWatch) signalRunner(cmd *exec.Cmd, sig syscall.Signal, grace time.Duration) {
	if err := signalGroup(cmd, sig); err != nil {
		w.service.log.Warn("cannot ask the runner to stop, it is killed after the grace period",
			"error", err.Error(), "grace", grace.String())
	}

	w.killTimer = w.service.clock.After(grace)
}

// drainEvents handles the events that arrived before the runner exited.
func (w *runnerWatch) drainEvents() {
	for {
		select {
		case e := <-w.events:
			_ = w.handleEvent(e)
		default:
			return
		}
	}
}

// handleEvent handles one event. If it returns an end, the runner must be stopped.
func (w *runnerWatch) handleEvent(e event) *endError {
	switch e.kind {
	case eventListening:
		w.reportOnline()
	case eventRunning:
		if e.text != "" {
			w.job = e.text
		}

		if !w.hasJobStarted {
			w.reportOnline() // the hook can report the job before the output shows that the runner is online
			w.hasJobStarted, w.idleTimer = true, nil
			w.jobTimer = newTimeout(w.service.clock, w.cfg.JobTimeout.Value())
			w.service.reporter.reportPhase(guest.PhaseRunning, w.job)
			w.resumeForLateJob()
		}
	case eventCanceling:
		w.jobMessage, w.jobResult = e.text, e.result
	case eventCompleted:
		w.hasJobFinished = true
		if e.text != "" {
			w.jobMessage, w.jobResult = e.text, e.result
		}

		w.exitTimer = w.service.clock.After(exitTimeout)
	case eventVersion:
		w.service.reporter.setRunnerVersion(e.text)
	case eventExitReason:
		w.exitReason = e.text
	case eventRejected:
		if !w.hasJobStarted {
			return newFailure(guest.ReasonRegistrationError, "runner %s: %s", w.cfg.RunnerName, e.text)
		}
	case eventRetry:
		w.isRetrying = !w.hasJobStarted
	case eventRestart:
		w.restarts++
		if w.restarts > maxRestarts {
			return newFailure(guest.ReasonRunnerFailed, "the runner was started %d times and exited with an error each time: %s",
				w.restarts, w.lastOutput.text())
		}
	}

	return nil
}

// resumeForLateJob cancels the stop of a runner whose job arrived just after the idle timeout.
func (w *runnerWatch) resumeForLateJob() {
	if w.stopReason != nil && w.stopReason.reason == guest.ReasonIdleTimeout && w.launch.finishesLateJob() {
		w.service.log.Info("hyperfleet: a job arrived at the idle timeout and is run")
		w.stopReason, w.killTimer = nil, nil
	}
}

// reportOnline reports phase Listening when the runner is online for the first time.
func (w *runnerWatch) reportOnline() {
	if !w.wasOnline {
		w.wasOnline = true
		w.service.reporter.reportPhase(guest.PhaseListening, "")
	}
}

// handleLine parses one line of the runner's output. It runs concurrently with handleUntilExit.
func (w *runnerWatch) handleLine(text string) {
	w.lastOutput.add(text)

	if e, ok := w.platform.parseLine(text); ok {
		w.sendEvent(e)
	}
}

// handleHook handles one line from the runner's hooks. Both the hooks and the output can report the start of
// a job. Only the output reports its result.
func (w *runnerWatch) handleHook(line string) {
	if line == hookStarted {
		w.sendEvent(event{kind: eventRunning})
	}
}

func (w *runnerWatch) sendEvent(e event) {
	select {
	case w.events <- e:
	case <-w.closed:
	}
}

// endAfterExit returns how the machine ends after the runner has exited. If it returns nil, the runner is
// restarted.
func (w *runnerWatch) endAfterExit(code int) *endError {
	if w.hasJobFinished && w.jobMessage == "" {
		w.setResult(code)
	}

	switch {
	case w.stopReason != nil && (!w.hasJobFinished || w.stopReason.reason != guest.ReasonIdleTimeout):
		return w.stopReason
	case w.hasJobFinished: // also if the job arrived at the idle timeout
		return w.newJobDone()
	case w.isRetrying && !w.hasJobStarted:
		w.isRetrying = false
		if w.restarts < maxRestarts {
			return nil
		}

		return newFailure(guest.ReasonRegistrationError, "the runner could not connect: %s", w.lastOutput.text())
	default:
		return w.platform.endAfterExit(w, code)
	}
}

// setResult records that the job has finished and derives its result from the exit code.
func (w *runnerWatch) setResult(code int) {
	w.hasJobFinished = true
	if code == 0 {
		w.jobMessage, w.jobResult = "success (exit code 0)", w.launch.success
	} else {
		w.jobMessage, w.jobResult = fmt.Sprintf("failure (exit code %d)", code), w.launch.failure
	}
}

// newUnexpectedExit returns the end of a machine whose runner exited unexpectedly.
func (w *runnerWatch) newUnexpectedExit(code int) *endError {
	if w.hasJobStarted {
		return newFailure(guest.ReasonRunnerFailed, "the runner exited with code %d during %s: %s",
			code, w.jobName(), w.lastOutput.text())
	}

	return newFailure(guest.ReasonRunnerFailed, "the runner exited with code %d and without a job: %s", code, w.lastOutput.text())
}

// newIdleTimeout returns the end of a machine that got no job.
func (w *runnerWatch) newIdleTimeout() *endError {
	return newFinish(guest.ReasonIdleTimeout, "no job started within "+w.cfg.IdleTimeout.Value().String())
}

// jobName returns the job for messages. The name is missing while only a hook has reported the job.
func (w *runnerWatch) jobName() string { return strings.TrimSpace("job " + w.job) }

// newJobDone returns the reason to end the machine because its job has finished. The job may have succeeded or
// failed.
func (w *runnerWatch) newJobDone() *endError {
	out := newFinish(guest.ReasonJobDone, w.jobName()+": "+cmp.Or(w.jobMessage, "finished"))
	out.result = w.jobResult

	return out
}
