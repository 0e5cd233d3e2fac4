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
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/api/guest"
)

// Options of the service.
type Options struct {
	// ConfigPath is the path of the configuration. The default is guest.ConfigPath.
	ConfigPath string
	// Root is the prefix of every absolute path. The default is "/". With another root, the service does not
	// access files outside of it, and the caller treats the end of the service as the end of the machine.
	Root string
	// Log receives the log, which the console shows. The default discards it.
	Log *slog.Logger
	// Clock is the clock for timeouts and times. The default is the machine's system clock.
	Clock Clock
	// PowerOff powers the machine off after the last report. If it is nil, the machine stays on.
	PowerOff func(context.Context) error
	// StopGrace is how long a runner may take to stop before it is killed. The default is 30 seconds.
	StopGrace time.Duration
	// RestartDelay is the delay before a failed runner is restarted. The default is 5 seconds.
	RestartDelay time.Duration
}

// Service is the bootstrap service of one machine. Call Run only once.
type Service struct {
	opts Options
	log  *slog.Logger
	// traceparent is the runner's environment variable TRACEPARENT. It is empty if there is no trace.
	traceparent string
	// environment contains the configuration's environment variables for the runner.
	environment []string
	clock       Clock
	reporter    *reporter
	redactor    redactor
	// identity is nil until the machine has attested.
	identity *identity
	// tail keeps the end of the runner's output for the last report.
	tail tail
	// loggedOutput is the number of bytes of the runner's output that were logged.
	loggedOutput int
}

// OptionsOfMachine returns the options of the service in a machine. The service powers the machine off only if root is the
// root of the file system, and not a folder.
func OptionsOfMachine(configPath, root string, log *slog.Logger) Options {
	opts := Options{ConfigPath: configPath, Root: root, Log: log}
	if IsRoot(root) {
		opts.PowerOff = PowerOff
	}

	return opts
}

// New returns a service. It sets the defaults of the options.
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

	if opts.RestartDelay == 0 {
		opts.RestartDelay = 5 * time.Second
	}

	s := &Service{opts: opts, log: opts.Log, clock: opts.Clock, tail: tail{limit: guest.MaxLog}}
	s.reporter = newReporter(opts.Log, opts.Clock, s.path(guest.StatusPath))

	return s
}

// path returns the absolute path p below the root. On Windows, a path without a drive is on the drive of the root,
// or on the system's drive.
func (s *Service) path(p string) string {
	if IsRoot(s.opts.Root) {
		return filepath.Clean(withDrive(p))
	}

	return filepath.Join(s.opts.Root, strings.TrimPrefix(p, filepath.VolumeName(p)))
}

// configFile returns the path of the configuration below the root. A path that is already below the root is
// not changed.
func (s *Service) configFile() string {
	rel, err := filepath.Rel(s.opts.Root, s.opts.ConfigPath)
	if err == nil && filepath.IsLocal(rel) {
		return s.opts.ConfigPath
	}

	return s.path(s.opts.ConfigPath)
}

// endError is the reason why the machine ends, which need not be a failure. It implements error so that steps
// can return it.
type endError struct {
	phase           guest.Phase
	reason, message string
	// result is the job's result as the platform names it. It is empty if no job has finished.
	result string
}

func (e *endError) Error() string { return e.reason + ": " + e.message }

// newFailure returns the end of a machine that failed.
func newFailure(reason, format string, args ...any) *endError {
	return &endError{phase: guest.PhaseFailed, reason: reason, message: fmt.Errorf(format, args...).Error()}
}

// newFinish returns the reason to end a machine that has finished its work or was stopped.
func newFinish(reason, message string) *endError {
	return &endError{phase: guest.PhaseFinished, reason: reason, message: message}
}

// Run runs the service from reading the configuration to powering off the machine. It returns the last
// report, whose phase is Finished or Failed. If ctx is done (SIGTERM), Run stops the runner.
func (s *Service) Run(ctx context.Context) guest.Report {
	var cfg *guest.Config

	err := provideConfig(s.configFile(), s.clock, s.log)
	if err == nil {
		cfg, err = readAndDeleteConfig(s.configFile())
	}

	if err == nil {
		s.redactor.addConfigSecrets(cfg)
		s.setTrace(cfg.Traceparent)
		err = s.reporter.connect(cfg.Report)
	}

	if err != nil {
		err = newFailure(guest.ReasonConfigInvalid, "%w", err)
	} else {
		err = s.runSteps(ctx, cfg)
	}

	var end *endError // runSteps always returns an error
	if !errors.As(err, &end) {
		end = newFailure(guest.ReasonRunnerFailed, "%w", err)
	}

	end = s.explainExpiry(cfg, end)

	if ctx.Err() != nil && end.phase == guest.PhaseFailed {
		result := end.result
		end = newFinish(guest.ReasonTerminated, "the service was stopped")
		end.result = result
	}

	s.removeIdentity()
	s.reporter.record(guest.Report{
		Phase: end.phase, Reason: end.reason, Message: s.redactor.redact(end.message), Result: s.redactor.redact(end.result),
		Log: s.tail.text(),
	})
	s.cleanUp(cfg)
	s.reporter.close(ctx)
	s.powerOff()

	return s.reporter.lastReport
}

// runSteps runs all steps until the runner has exited. It always returns an error. If the error is a
// *endError, it says how the machine ends.
func (s *Service) runSteps(ctx context.Context, cfg *guest.Config) error {
	s.reporter.reportPhase(guest.PhaseStarted, "runner "+cfg.RunnerName)

	for _, step := range []func(context.Context, *guest.Config) error{
		s.attest, s.fetchCredential, s.fetchSecrets, s.install, s.configureCaches, s.configure,
	} {
		if err := step(ctx, cfg); err != nil {
			return err
		}
	}

	return s.runRunner(ctx, cfg)
}

// explainExpiry returns the end of a machine whose registration failed with an expired credential, and e otherwise.
// The CI platform decides whether the credential is valid, because the machine's clock may be wrong.
func (s *Service) explainExpiry(cfg *guest.Config, e *endError) *endError {
	if e.reason != guest.ReasonRegistrationError || cfg.ExpiresAt == nil || s.clock.Now().Before(*cfg.ExpiresAt) {
		return e
	}

	return newFailure(guest.ReasonCredentialExpired, "the runner's credential expired at %s by the machine's clock: %s",
		cfg.ExpiresAt.UTC().Format(time.RFC3339), e.message)
}

// cleanUpTimeout limits the deletion of the files of a job.
const cleanUpTimeout = 20 * time.Second

// cleanUp deletes the credentials, and then the hooks and the work directory. It waits at most cleanUpTimeout
// for the deletion of the hooks and the work directory.
func (s *Service) cleanUp(cfg *guest.Config) {
	if cfg == nil {
		return
	}

	for _, name := range platformFor(cfg.Platform).credentialFiles(cfg) {
		s.removeAll(s.path(name))
	}

	done := make(chan struct{})

	go func() {
		defer close(done)
		s.removeAll(s.path(hooksDir))
		s.removeAll(s.path(jobStartedPath))
		s.removeAll(s.path(cfg.Runner.WorkDir))
	}()

	select {
	case <-done:
	case <-s.clock.After(cleanUpTimeout):
		s.log.Warn("the work directory could not be deleted in time and stays until the machine is deleted", "path", cfg.Runner.WorkDir)
	}
}

func (s *Service) removeAll(file string) {
	if err := os.RemoveAll(file); err != nil {
		s.log.Warn("cannot delete file", "path", file, "error", err.Error())
	}
}

// powerOffTimeout limits the request to power off.
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
