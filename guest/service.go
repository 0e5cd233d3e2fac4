// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/hyperfleet/hyperfleet/api/guest"
)

// Options of the service.
type Options struct {
	// ConfigPath is where the configuration is; default guest.ConfigPath.
	ConfigPath string
	// Root is put before every absolute path; default "/". With another root nothing
	// outside of it is touched, and the caller takes the service's end for the
	// machine's.
	Root string
	// Log takes JSON lines; it is what the console shows.
	Log *slog.Logger
	// Clock tells the time; default the machine's.
	Clock Clock
	// PowerOff ends the machine after the last report; nil leaves it on.
	PowerOff func(context.Context) error
	// StopGrace is how long a runner that was told to stop has before it is killed;
	// default 30 seconds.
	StopGrace time.Duration
	// RestartPause is the wait before a failed runner is tried again; default 5 seconds.
	RestartPause time.Duration
}

// Service is one machine's bootstrap service. It runs once.
type Service struct {
	opts Options
	log  *slog.Logger
	// traceparent is the runner's variable TRACEPARENT; empty where there is no trace.
	traceparent string
	// environment is the configuration's, for the runner.
	environment []string
	clock       Clock
	report      *reporter
	redact      redactor
	// identity is who the machine is; nil unless it attests.
	identity *identity
	// tail is the end of the runner's output, for the last report.
	tail tail
}

// New makes a service.
func New(opts Options) *Service {
	if opts.ConfigPath == "" {
		opts.ConfigPath = guest.ConfigPath
	}

	if opts.Root == "" {
		opts.Root = "/"
	}

	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}

	if opts.Clock == nil {
		opts.Clock = wallClock{}
	}

	if opts.StopGrace == 0 {
		opts.StopGrace = 30 * time.Second
	}

	if opts.RestartPause == 0 {
		opts.RestartPause = 5 * time.Second
	}

	s := &Service{opts: opts, log: opts.Log, clock: opts.Clock, tail: tail{limit: guest.MaxLog}}
	s.report = newReporter(opts.Log, opts.Clock, s.path(guest.StatusPath))

	return s
}

// path puts an absolute path of the machine below the root.
func (s *Service) path(p string) string { return filepath.Join(s.opts.Root, p) }

// configFile is where the configuration is; a path that is below the root already stays
// as it is.
func (s *Service) configFile() string {
	rel, err := filepath.Rel(s.opts.Root, s.opts.ConfigPath)
	if err == nil && filepath.IsLocal(rel) {
		return s.opts.ConfigPath
	}

	return s.path(s.opts.ConfigPath)
}

// end is why the machine ends. It is an error so that steps can return it.
type end struct {
	phase           guest.Phase
	reason, message string
	// result of the job in the platform's word, if one ran to its end.
	result string
}

func (e *end) Error() string { return e.reason + ": " + e.message }

func failed(reason, format string, args ...any) *end {
	return &end{phase: guest.PhaseFailed, reason: reason, message: fmt.Errorf(format, args...).Error()}
}

// ended is the end of a machine that did what it was for, or was told to stop.
func ended(reason, message string) *end {
	return &end{phase: guest.PhaseFinished, reason: reason, message: message}
}

// Run does the whole of the service's work and returns the last report: Finished or
// Failed, with the reason. When ctx ends (SIGTERM) the runner is told to finish.
func (s *Service) Run(ctx context.Context) guest.Report {
	cfg, err := takeConfig(s.configFile())
	if err == nil {
		s.redact.hideAll(cfg)
		s.joinTrace(cfg.Traceparent)
		err = s.report.connect(cfg.Report)
	}

	if err != nil {
		err = failed(guest.ReasonConfigInvalid, "%w", err)
	} else {
		err = s.work(ctx, cfg)
	}

	var e *end
	if !errors.As(err, &e) {
		e = failed(guest.ReasonRunnerFailed, "%w", err)
	}

	if ctx.Err() != nil && e.phase == guest.PhaseFailed {
		result := e.result
		e = ended(guest.ReasonTerminated, "the service was told to stop")
		e.result = result
	}

	s.forgetIdentity()
	s.report.tell(guest.Report{
		Phase: e.phase, Reason: e.reason, Message: s.redact.clean(e.message), Result: s.redact.clean(e.result), Log: s.tail.text(),
	})
	s.cleanUp(cfg)
	s.report.close()
	s.powerOff()

	return s.report.last
}

// work goes from the configuration to the runner's end. It always returns an error; an
// *end says how the machine ends.
func (s *Service) work(ctx context.Context, cfg *guest.Config) error {
	s.report.report(guest.PhaseStarted, "runner "+cfg.RunnerName)

	for _, step := range []func(context.Context, *guest.Config) error{
		s.attest, s.fetchCredential, s.fetchSecrets, s.checkCredential, s.install, s.checkCredential, s.useCaches, s.configure,
	} {
		if err := step(ctx, cfg); err != nil {
			return err
		}
	}

	return s.runRunner(ctx, cfg)
}

// checkCredential ends the machine if its credential is of no more use.
func (s *Service) checkCredential(_ context.Context, cfg *guest.Config) error {
	if cfg.ExpiresAt == nil || s.clock.Now().Before(*cfg.ExpiresAt) {
		return nil
	}

	return failed(guest.ReasonCredentialExpired, "the runner's credential expired at %s, before the runner was started",
		cfg.ExpiresAt.UTC().Format(time.RFC3339))
}

// cleanTimeout bounds the removal of what a job left.
const cleanTimeout = 20 * time.Second

// cleanUp removes credentials first, then what the job left, for a bounded time.
func (s *Service) cleanUp(cfg *guest.Config) {
	if cfg == nil {
		return
	}

	for _, name := range platformOf(cfg.Platform).credentials(cfg) {
		s.remove(s.path(name))
	}

	done := make(chan struct{})

	go func() {
		defer close(done)
		s.remove(s.path(hooksDir))
		s.remove(s.path(jobPipe))
		s.remove(s.path(cfg.Runner.WorkDir))
	}()

	select {
	case <-done:
	case <-s.clock.After(cleanTimeout):
		s.log.Warn("the work directory is large: it goes with the machine", "path", cfg.Runner.WorkDir)
	}
}

func (s *Service) remove(file string) {
	if err := os.RemoveAll(file); err != nil {
		s.log.Warn("cannot remove", "path", file, "error", err.Error())
	}
}

// powerOffTimeout bounds asking the system to power off.
const powerOffTimeout = 30 * time.Second

func (s *Service) powerOff() {
	if s.opts.PowerOff == nil {
		return
	}

	ctx, cancel := context.WithTimeout(context.Background(), powerOffTimeout)
	defer cancel()

	if err := s.opts.PowerOff(ctx); err != nil {
		s.log.Error("cannot power off the machine", "error", err.Error())
	}
}
