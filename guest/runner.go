// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/hyperfleet/hyperfleet/api/guest"
)

// Exit codes of the runner's listener. The runner's own run.sh hides most of them behind
// 0 and says them in words, so both are looked at.
const (
	exitOK            = 0
	exitTerminated    = 1
	exitRetryable     = 2
	exitUpdating      = 3
	exitUpdatingEph   = 4
	exitConflict      = 5
	exitConfigRefresh = 6
	exitDeprecated    = 7
)

// maxRestarts is how often a runner is started again, by us or by its own script.
const maxRestarts = 5

// finishTimeout is how long a runner may take to end after its job.
const finishTimeout = 2 * time.Minute

const (
	killSignal = syscall.SIGKILL
	stopSignal = syscall.SIGINT // the runner finishes its session on it
)

// What the runner and its scripts print.
var (
	lineListening = regexp.MustCompile(`(^|: )Listening for Jobs`)
	lineRunning   = regexp.MustCompile(`(?:^|: )Running job: (.*)`)
	lineCompleted = regexp.MustCompile(`(?:^|: )Job (.*) completed with result: (\w+)`)
	lineRestart   = regexp.MustCompile(`^Restarting runner\.{3}`)
	lineExit      = regexp.MustCompile(`(?i)exit with (terminated error|session conflict|deprecated version)`)
)

// event is something seen of a runner.
type event struct {
	kind eventKind
	text string
}

type eventKind int

const (
	eventListening eventKind = iota
	eventRunning
	eventCompleted
	eventRestart
	eventTrouble
)

// runRunner runs the runner until it has done its one job or is stopped.
func (s *Service) runRunner(ctx context.Context, cfg *guest.Config) error {
	who, err := s.findAccount()
	if err != nil {
		return failed(guest.ReasonRunnerFailed, "%w", err)
	}

	w := &watch{service: s, cfg: cfg, events: make(chan event, 64), quit: make(chan struct{})}
	defer close(w.quit)

	h, err := s.newHooks(who, w.hook)
	if err != nil {
		s.log.Warn("the runner's hooks are not used: its output tells of jobs", "error", err.Error())
	}

	defer h.close()

	w.idle = afterOrNever(s.clock, cfg.IdleTimeout.Value())

	for {
		exit, err := w.once(ctx, who, h)
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
	service *Service
	cfg     *guest.Config
	events  chan event
	quit    chan struct{}

	listening bool   // was online once
	job       string // name of the job it took
	ran       bool
	result    string // of the job, as the forge names it
	trouble   string // last words of the runner's script on how it ended
	restarts  int
	last      lastLines

	// Timeouts: for a job to come, for the job, and for the runner's end after it.
	idle, jobEnd, finish <-chan time.Time

	stopped *end // why it was told to stop before it was done
}

// once runs the runner's script once and gives its exit code.
func (w *watch) once(ctx context.Context, who *account, h *hooks) (int, error) {
	s := w.service
	cmd := s.command(context.WithoutCancel(ctx), w.cfg, who, w.cfg.Runner.RunScript, nil, "JITCONFIG", w.cfg.JITConfig)
	// Makes run.sh tell when the forge has refused the runner's version.
	cmd.Env = append(cmd.Env, "ACTIONS_RUNNER_RETURN_VERSION_DEPRECATED_EXIT_CODE=1")

	if h != nil {
		cmd.Env = append(cmd.Env, h.env...)
	}

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

	err := w.follow(ctx, cmd, exited)
	_ = signalGroup(cmd, killSignal) // whatever a job left behind

	var exit *exec.ExitError

	switch {
	case err == nil, errors.Is(err, exec.ErrWaitDelay):
		return exitOK, nil
	case errors.As(err, &exit):
		return exit.ExitCode(), nil
	default:
		return 0, failed(guest.ReasonRunnerFailed, "wait for runner: %w", err)
	}
}

// follow handles events and timeouts until the runner has exited.
func (w *watch) follow(ctx context.Context, cmd *exec.Cmd, exited <-chan error) error {
	var kill <-chan time.Time

	stop := func(why *end) {
		if w.stopped != nil {
			return
		}

		if w.stopped = why; w.result != "" {
			w.stopped = w.done()
		}

		w.service.log.Info("hyperfleet: the runner is told to stop", "reason", why.reason)
		_ = signalGroup(cmd, stopSignal)
		kill = w.service.clock.After(w.service.opts.StopGrace)
	}
	done := ctx.Done()

	for {
		select {
		case err := <-exited:
			w.drain()

			return err
		case e := <-w.events:
			if why := w.handle(e); why != nil {
				stop(why)
			}
		case <-w.idle:
			w.idle = nil
			if !w.ran {
				stop(&end{guest.PhaseFinished, guest.ReasonIdleTimeout, "no job came within " + w.cfg.IdleTimeout.Value().String()})
			}
		case <-w.jobEnd:
			w.jobEnd = nil
			stop(failed(guest.ReasonJobTimeout, "%s took more than %s", w.jobName(), w.cfg.JobTimeout.Value()))
		case <-w.finish:
			w.finish = nil
			stop(w.done())
		case <-done:
			done = nil
			stop(&end{guest.PhaseFinished, guest.ReasonTerminated, "the service was told to stop"})
		case <-kill:
			kill = nil
			w.service.log.Warn("the runner did not stop in time, it is killed")
			_ = signalGroup(cmd, killSignal)
		}
	}
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
			w.service.report.report(guest.PhaseRunning, "", w.job)
		}
	case eventCompleted:
		w.result = e.text
		w.finish = w.service.clock.After(finishTimeout)
	case eventTrouble:
		w.trouble = e.text
	case eventRestart:
		w.restarts++
		if w.restarts > maxRestarts {
			return failed(guest.ReasonRunnerFailed, "the runner was started %d times and ended with an error each time: %s",
				w.restarts, w.last.text())
		}
	}

	return nil
}

// online notes that the runner was online; once.
func (w *watch) online() {
	if !w.listening {
		w.listening = true
		w.service.report.report(guest.PhaseListening, "", "")
	}
}

// line reads one line of the runner's output. It runs beside follow.
func (w *watch) line(text string) {
	w.last.add(text)

	switch {
	case lineListening.MatchString(text):
		w.send(event{eventListening, ""})
	case lineCompleted.MatchString(text):
		w.send(event{eventCompleted, lineCompleted.FindStringSubmatch(text)[2]})
	case lineRunning.MatchString(text):
		w.send(event{eventRunning, strings.TrimSpace(lineRunning.FindStringSubmatch(text)[1])})
	case lineRestart.MatchString(text):
		w.send(event{eventRestart, ""})
	case lineExit.MatchString(text):
		m := lineExit.FindStringSubmatch(text)
		w.send(event{eventTrouble, strings.ToLower(m[1])})
	}
}

// hook takes a word of the runner's hooks. That a job began may be told by either side;
// its result only by the runner.
func (w *watch) hook(word string) {
	if word == hookStarted {
		w.send(event{eventRunning, ""})
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
	switch {
	case w.stopped != nil && (w.result == "" || w.stopped.reason != guest.ReasonIdleTimeout):
		return w.stopped
	case w.result != "": // also if a job came in the moment of the idle timeout
		return w.done()
	}

	said := w.last.text()

	switch {
	case exit == exitConflict, strings.Contains(w.trouble, "session conflict"):
		return failed(guest.ReasonRegistrationError, "another runner is connected as %s: %s", w.cfg.RunnerName, said)
	case exit == exitDeprecated, strings.Contains(w.trouble, "deprecated"):
		return failed(guest.ReasonRunnerFailed, "the forge refuses this version of the runner, install a newer one in the image: %s",
			said)
	case (exit == exitTerminated || strings.Contains(w.trouble, "terminated")) && !w.listening:
		return failed(guest.ReasonRegistrationError, "the runner could not connect: %s", said)
	case (exit == exitRetryable || exit == exitUpdating || exit == exitUpdatingEph || exit == exitConfigRefresh) &&
		w.restarts < maxRestarts && !w.ran:
		return nil
	case w.ran:
		return failed(guest.ReasonRunnerFailed, "the runner ended with code %d in the middle of %s: %s", exit, w.jobName(), said)
	default:
		return failed(guest.ReasonRunnerFailed, "the runner ended with code %d and without a job: %s", exit, said)
	}
}

// jobName is the job in words; hooks tell of a job before its name is known.
func (w *watch) jobName() string { return strings.TrimSpace("job " + w.job) }

// done is the end of a machine whose job has run, whatever the job's result.
func (w *watch) done() *end {
	return &end{guest.PhaseFinished, guest.ReasonJobDone, fmt.Sprintf("%s: %s", w.jobName(), w.result)}
}

// signalGroup signals a command and all its children.
func signalGroup(cmd *exec.Cmd, sig syscall.Signal) error {
	if cmd.Process == nil {
		return nil
	}

	return syscall.Kill(-cmd.Process.Pid, sig)
}
