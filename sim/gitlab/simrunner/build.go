// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package simrunner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/script"
)

const (
	// reportAttempts is the number of attempts to report the end of a job.
	reportAttempts = 5
	reportDelay    = time.Second
)

// jobLog is the log of a job. The scripts write to it, and the runner sends it in parts.
type jobLog struct {
	mu   sync.Mutex
	text bytes.Buffer
	sent int
}

// Write appends to the log.
func (l *jobLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *jobLog) unsent() ([]byte, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Clone(l.text.Bytes()[l.sent:]), l.sent
}

var errAborted = errors.New("aborted: terminated")

// build runs one job and reports it. It returns the error of the job.
func (r *runner) build(ctx context.Context, w *work) error {
	reportCtx := context.WithoutCancel(ctx) // a signal must not end the calls of an accepted job
	start := time.Now()
	if isActive, _ := r.update(reportCtx, w, "running", "", 0); !isActive { // the job was cancelled after its assignment
		return r.conclude(reportCtx, w, &jobLog{}, time.Since(start), nil, errCanceled)
	}
	trace := &jobLog{}
	_, _ = fmt.Fprintf(trace, "Running with gitlab-runner %s\n  on %s, system ID: %s\n", version, shorten(r.token), r.systemID)
	_, _ = fmt.Fprintf(trace, "Preparing the %q executor\nUsing Shell (bash) executor...\n", r.executor)
	jobCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.reportProgress(jobCtx, cancel, w, trace)
	}()
	err := r.runSteps(jobCtx, w, trace)
	cause := context.Cause(jobCtx)
	cancel(nil)
	<-done
	return r.conclude(reportCtx, w, trace, time.Since(start), err, cause)
}

var errCanceled = errors.New("canceled")

// reportProgress sends the log and renews the job at an interval. If the server ends the job,
// reportProgress calls stop.
func (r *runner) reportProgress(ctx context.Context, stop context.CancelCauseFunc, w *work, trace *jobLog) {
	tick := time.NewTicker(r.CheckInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if !r.sendProgress(ctx, w, trace) && ctx.Err() == nil {
			stop(errCanceled)
			return
		}
	}
}

// sendProgress sends the new part of the log. If there is none, it reports that the job still runs.
// It returns false if the server has ended the job.
func (r *runner) sendProgress(ctx context.Context, w *work, trace *jobLog) bool {
	if text, _ := trace.unsent(); len(text) > 0 {
		return r.flush(ctx, w, trace)
	}
	isActive, _ := r.update(ctx, w, "running", "", 0)
	return isActive
}

// flush sends the new part of the log. It returns false if the server has ended the job.
func (r *runner) flush(ctx context.Context, w *work, trace *jobLog) bool {
	text, offset := trace.unsent()
	if len(text) == 0 {
		return true
	}
	sent, active, err := r.appendLog(ctx, w, text, offset)
	if err != nil {
		r.log("WARNING: ", "Appending trace to coordinator... failed", "job", w.ID, "status", err)
	}
	trace.mu.Lock()
	trace.sent = sent
	trace.mu.Unlock()
	return active
}

// sendRest sends the rest of the log, so that the server has the whole log before the job ends.
func (r *runner) sendRest(ctx context.Context, w *work, trace *jobLog) {
	for range reportAttempts {
		isActive := r.flush(ctx, w, trace)
		if rest, _ := trace.unsent(); len(rest) == 0 || !isActive {
			return
		}
	}
}

// conclude prints and reports the result of the job.
func (r *runner) conclude(ctx context.Context, w *work, trace *jobLog, duration time.Duration, err, cause error) error {
	fields := []any{"duration_s", duration.Seconds(), "job", w.ID, "project", w.JobInfo.ProjectID, "runner", shorten(r.token)}
	state, failure, code := "success", "", 0
	var exitErr *exec.ExitError
	switch {
	case errors.Is(cause, errCanceled):
		r.log("WARNING: ", "Job failed: canceled", fields...)
		return errCanceled
	case cause != nil:
		err, state, failure = errAborted, "failed", "runner_system_failure"
	case errors.As(err, &exitErr):
		state, failure, code = "failed", "script_failure", exitErr.ExitCode()
	case errors.Is(err, errTimeout):
		state, failure = "failed", "job_execution_timeout"
	case err != nil:
		state, failure = "failed", "runner_system_failure"
	}
	if err == nil {
		_, _ = fmt.Fprintln(trace, "Job succeeded")
		r.info("Job succeeded", fields...)
	} else {
		_, _ = fmt.Fprintf(trace, "ERROR: Job failed: %v\n", err)
		r.log("WARNING: ", fmt.Sprintf("Job failed: %v", err), fields...)
	}
	r.sendRest(ctx, w, trace)
	for attempt := 1; ; attempt++ {
		isActive, updateErr := r.update(ctx, w, state, failure, code)
		if updateErr == nil || !isActive || attempt == reportAttempts {
			return err
		}
		r.log("WARNING: ", "Submitting job to coordinator... failed", "job", w.ID, "status", updateErr)
		time.Sleep(reportDelay)
	}
}

var errTimeout = errors.New("execution took longer than the job's timeout")

// runSteps runs the steps of a job one after the other.
func (r *runner) runSteps(ctx context.Context, w *work, trace *jobLog) error {
	dir := filepath.Join(r.buildsDir, shorten(r.token), "0", filepath.FromSlash(w.JobInfo.ProjectName))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("prepare environment: %w", err)
	}
	limit, cancel := context.WithTimeoutCause(ctx, time.Duration(max(w.RunnerInfo.Timeout, 1))*time.Second, errTimeout)
	defer cancel()
	for _, step := range w.Steps {
		_, _ = fmt.Fprintf(trace, "Executing %q stage of the job script\n", "step_"+step.Name)
		if err := r.runScript(limit, w, dir, strings.Join(step.Script, "\n"), trace); err != nil {
			if errors.Is(context.Cause(limit), errTimeout) {
				return errTimeout
			}
			return err
		}
	}
	return nil
}

func (r *runner) runScript(ctx context.Context, w *work, dir, text string, trace *jobLog) error {
	cmd := script.New(ctx, text, 5*time.Second)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, trace, trace
	cmd.Env = r.newEnvironment(w, dir)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run script: %w", err)
	}
	return nil
}

// newEnvironment returns the environment of the scripts: the runner's own variables with its token,
// as with the shell executor; the variables of its settings; and the variables of the job.
func (r *runner) newEnvironment(w *work, dir string) []string {
	out := os.Environ()
	if r.environment != "" {
		out = append(out, strings.Split(r.environment, ",")...)
	}
	for _, variable := range w.Variables {
		out = append(out, variable.Key+"="+variable.Value)
	}
	return append(out, "CI_PROJECT_DIR="+dir, "CI_RUNNER_VERSION="+version,
		"CI_JOB_TIMEOUT="+strconv.FormatInt(w.RunnerInfo.Timeout, 10))
}
