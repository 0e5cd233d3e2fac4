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

// maxRestarts is how often a runner is started again, by us or by its own script.
const maxRestarts = 5

// finishTimeout is how long a runner may take to end after its job.
const finishTimeout = 2 * time.Minute

const killSignal = syscall.SIGKILL

// runRunner runs the runner until it has done its one job or is stopped.
func (s *Service) runRunner(ctx context.Context, cfg *guest.Config) error {
	who, err := s.findAccount()
	if err != nil {
		return failed(guest.ReasonRunnerFailed, "%w", err)
	}

	if who == nil {
		s.forgetIdentity() // nothing keeps such a job from it, and the runner needs none
	}

	p := platformOf(cfg.Platform)
	w := &watch{
		service: s, cfg: cfg, platform: p, launch: p.launch(s, cfg), job: cfg.JobID,
		events: make(chan event, 64), quit: make(chan struct{}),
	}

	defer close(w.quit)

	if w.launch.hooks {
		h, err := s.newHooks(who, w.hook)
		if err != nil {
			s.log.Warn("the runner's hooks are not used: its output tells of jobs", "error", err.Error())
		}

		defer h.close()

		if h != nil {
			w.launch.env = append(w.launch.env, h.env...)
		}
	}

	w.idle = afterOrNever(s.clock, cfg.IdleTimeout.Value())

	for {
		exit, err := w.once(ctx, who)
		if err != nil {
			return err
		}

		if e := w.verdict(exit); e != nil {
			return e
		}

		w.restarts++

		s.log.Warn("the runner is started again", "exitCode", exit, "restart", w.restarts)

		if err := pause(ctx, s.clock, s.opts.RestartPause); err != nil {
			return failed(guest.ReasonTerminated, "stopped while the runner was about to be started again")
		}
	}
}

// watch is what is known of the runner so far.
type watch struct {
	service  *Service
	cfg      *guest.Config
	platform platform
	launch   launch
	events   chan event
	quit     chan struct{}

	listening bool   // was online once
	job       string // name of the job it took
	ran       bool
	over      bool   // the job has ended
	said      string // of the job's end, by the runner; "" if its exit code tells
	result    string // of the job, in the platform's word
	trouble   string // last words of the runner's script on how it ended
	retry     bool   // is being stopped in order to be started anew
	restarts  int
	last      lastLines

	// Timeouts: for a job to come, for the job, and for the runner's end after it.
	idle, jobEnd, finish <-chan time.Time
	// kill is when a runner that was told to stop is killed.
	kill <-chan time.Time

	stopped *end // why it was told to stop before it was done
}

// once runs the runner once and gives its exit code.
func (w *watch) once(ctx context.Context, who *account) (int, error) {
	s := w.service
	cmd := s.command(context.WithoutCancel(ctx), w.launch, who)
	out := s.lines(w.line)
	cmd.Stdout, cmd.Stderr = out, out

	started, exited := make(chan error, 1), make(chan error, 1)

	go func() {
		// The kernel takes the end of this thread for the end of the service (Pdeathsig).
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()

		err := cmd.Start()
		started <- err

		if err != nil {
			return
		}

		err = cmd.Wait()

		out.flush()

		exited <- err
	}()

	if err := <-started; err != nil {
		return 0, failed(guest.ReasonRunnerFailed, "start runner: %w", err)
	}

	if w.launch.job != "" {
		w.send(event{kind: eventRunning, text: w.launch.job})
	}

	err := w.follow(ctx, cmd, exited)
	_ = signalGroup(cmd, killSignal) // whatever a job left behind

	var exit *exec.ExitError

	switch {
	case err == nil, errors.Is(err, exec.ErrWaitDelay):
		return exitOK, nil
	case errors.As(err, &exit):
		return exitCode(exit), nil
	default:
		return 0, failed(guest.ReasonRunnerFailed, "wait for runner: %w", err)
	}
}

// exitCode is that of an ended program; of one that a signal ended, as shells tell it.
func exitCode(exit *exec.ExitError) int {
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return signalBase + int(status.Signal())
	}

	return exit.ExitCode()
}

// follow handles events and timeouts until the runner has exited.
func (w *watch) follow(ctx context.Context, cmd *exec.Cmd, exited <-chan error) error {
	done := ctx.Done()
	w.kill = nil

	for {
		select {
		case err := <-exited:
			w.drain()

			return err
		case e := <-w.events:
			retrying := w.retry
			w.stop(cmd, w.handle(e))

			if w.retry && !retrying {
				w.signal(cmd, w.launch.abort, w.service.opts.StopGrace)
			}
		case <-w.idle:
			w.idle = nil
			if !w.ran {
				w.stop(cmd, w.idled())
			}
		case <-w.jobEnd:
			w.jobEnd = nil
			w.stop(cmd, failed(guest.ReasonJobTimeout, "%s took more than %s", w.jobName(), w.cfg.JobTimeout.Value()))
		case <-w.finish:
			w.finish = nil
			w.stop(cmd, w.done())
		case <-done:
			done = nil
			w.stop(cmd, ended(guest.ReasonTerminated, "the service was told to stop"))
		case <-w.kill:
			w.kill = nil
			w.service.log.Warn("the runner did not stop in time, it is killed")
			_ = signalGroup(cmd, killSignal)
		}
	}
}

// stop tells the runner to stop, once; why nil does nothing.
func (w *watch) stop(cmd *exec.Cmd, why *end) {
	if why == nil || w.stopped != nil {
		return
	}

	switch w.stopped = why; {
	case w.over:
		w.stopped = w.done()
	case w.launch.job != "": // nobody else knows how that job ended
		why.result = resultCancelled
		if why.reason == guest.ReasonJobTimeout {
			why.result = resultTimedOut
		}
	}

	sig, grace := w.launch.abort, w.service.opts.StopGrace
	if why.reason == guest.ReasonIdleTimeout {
		sig = w.launch.quit
		grace = cmp.Or(w.launch.grace, grace)
	}

	w.service.log.Info("hyperfleet: the runner is told to stop", "reason", why.reason)
	w.signal(cmd, sig, grace)
}

// signal asks the runner to end within grace.
func (w *watch) signal(cmd *exec.Cmd, sig syscall.Signal, grace time.Duration) {
	_ = signalGroup(cmd, sig)
	w.kill = w.service.clock.After(grace)
}

// drain handles what came before the runner's end.
func (w *watch) drain() {
	for {
		select {
		case e := <-w.events:
			_ = w.handle(e)
		default:
			return
		}
	}
}

// handle takes one event; a non-nil end says that the runner must stop.
func (w *watch) handle(e event) *end {
	switch e.kind {
	case eventListening:
		w.online()
	case eventRunning:
		if e.text != "" {
			w.job = e.text
		}

		if !w.ran {
			w.online() // output and hooks come by two ways
			w.ran, w.idle = true, nil
			w.jobEnd = afterOrNever(w.service.clock, w.cfg.JobTimeout.Value())
			w.service.report.report(guest.PhaseRunning, w.job)
			w.goOn()
		}
	case eventEnding:
		w.said, w.result = e.text, e.result
	case eventCompleted:
		if w.over = true; e.text != "" {
			w.said, w.result = e.text, e.result
		}

		w.finish = w.service.clock.After(finishTimeout)
	case eventTrouble:
		w.trouble = e.text
	case eventRefused:
		if !w.ran {
			return failed(guest.ReasonRegistrationError, "runner %s: %s", w.cfg.RunnerName, e.text)
		}
	case eventRetry:
		w.retry = !w.ran
	case eventRestart:
		w.restarts++
		if w.restarts > maxRestarts {
			return failed(guest.ReasonRunnerFailed, "the runner was started %d times and ended with an error each time: %s",
				w.restarts, w.last.text())
		}
	}

	return nil
}

// goOn lets a runner finish a job that reached it when it was just asked to quit.
func (w *watch) goOn() {
	if w.stopped != nil && w.stopped.reason == guest.ReasonIdleTimeout && w.launch.patient() {
		w.service.log.Info("hyperfleet: a job came in the moment of the idle timeout, it is run")
		w.stopped, w.kill = nil, nil
	}
}

// online notes that the runner was online; once.
func (w *watch) online() {
	if !w.listening {
		w.listening = true
		w.service.report.report(guest.PhaseListening, "")
	}
}

// line reads one line of the runner's output. It runs beside follow.
func (w *watch) line(text string) {
	w.last.add(text)

	if e, ok := w.platform.read(text); ok {
		w.send(e)
	}
}

// hook takes a word of the runner's hooks. That a job began may be told by either side;
// its result only by the runner.
func (w *watch) hook(word string) {
	if word == hookStarted {
		w.send(event{kind: eventRunning})
	}
}

func (w *watch) send(e event) {
	select {
	case w.events <- e:
	case <-w.quit:
	}
}

// verdict says how the machine ends after the runner's exit; nil starts it again.
func (w *watch) verdict(exit int) *end {
	if w.over && w.said == "" {
		w.exited(exit)
	}

	switch {
	case w.stopped != nil && (!w.over || w.stopped.reason != guest.ReasonIdleTimeout):
		return w.stopped
	case w.over: // also if a job came in the moment of the idle timeout
		return w.done()
	case w.retry && !w.ran:
		if w.retry = false; w.restarts < maxRestarts {
			return nil
		}

		return failed(guest.ReasonRegistrationError, "the runner could not connect: %s", w.last.text())
	default:
		return w.platform.verdict(w, exit)
	}
}

// exited takes the job's result from an exit code.
func (w *watch) exited(exit int) {
	if w.over = true; exit == 0 {
		w.said, w.result = "success (exit code 0)", w.launch.success
	} else {
		w.said, w.result = fmt.Sprintf("failure (exit code %d)", exit), w.launch.failure
	}
}

// broken is the end of a machine whose runner ended before its time.
func (w *watch) broken(exit int) *end {
	if w.ran {
		return failed(guest.ReasonRunnerFailed, "the runner ended with code %d in the middle of %s: %s",
			exit, w.jobName(), w.last.text())
	}

	return failed(guest.ReasonRunnerFailed, "the runner ended with code %d and without a job: %s", exit, w.last.text())
}

// idled is the end of a machine that got no job.
func (w *watch) idled() *end {
	return ended(guest.ReasonIdleTimeout, "no job came within "+w.cfg.IdleTimeout.Value().String())
}

// jobName is the job in words; hooks tell of a job before its name is known.
func (w *watch) jobName() string { return strings.TrimSpace("job " + w.job) }

// done is the end of a machine whose job has run, whatever the job's result.
func (w *watch) done() *end {
	out := ended(guest.ReasonJobDone, w.jobName()+": "+cmp.Or(w.said, "finished"))
	out.result = w.result

	return out
}

// signalGroup signals a command and all its children.
func signalGroup(cmd *exec.Cmd, sig syscall.Signal) error {
	if cmd.Process == nil {
		return nil
	}

	return syscall.Kill(-cmd.Process.Pid, sig)
}
