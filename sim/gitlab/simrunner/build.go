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
	"syscall"
	"time"
)

const (
	// reportTries of the last word on a job.
	reportTries = 5
	reportPause = time.Second
)

// log of a job, written by its scripts and sent by and by.
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

func (l *jobLog) rest() ([]byte, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Clone(l.text.Bytes()[l.sent:]), l.sent
}

var errAborted = errors.New("aborted: terminated")

// build runs one job and reports it. It returns what went wrong with the job.
func (r *runner) build(ctx context.Context, w *work) error {
	finish := context.WithoutCancel(ctx) // a signal must not leave a job taken and forgotten
	begun := time.Now()
	if goes, _ := r.update(finish, w, "running", "", 0); !goes { // it was cancelled since it was given out
		return r.conclude(finish, w, &jobLog{}, time.Since(begun), nil, errCanceled)
	}
	trace := &jobLog{}
	_, _ = fmt.Fprintf(trace, "Running with gitlab-runner %s\n  on %s, system ID: %s\n", version, short(r.token), r.systemID)
	_, _ = fmt.Fprintf(trace, "Preparing the %q executor\nUsing Shell (bash) executor...\n", r.executor)
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	reported := make(chan struct{})
	go func() {
		defer close(reported)
		r.keepTold(inner, cancel, w, trace)
	}()
	err := r.scripts(inner, w, trace)
	cause := context.Cause(inner)
	cancel(nil)
	<-reported
	return r.conclude(finish, w, trace, time.Since(begun), err, cause)
}

var errCanceled = errors.New("canceled")

// keepTold sends the log and keeps the job alive, and stops it when the server says so.
func (r *runner) keepTold(ctx context.Context, stop context.CancelCauseFunc, w *work, trace *jobLog) {
	tick := time.NewTicker(r.Check)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if !r.tell(ctx, w, trace) && ctx.Err() == nil {
			stop(errCanceled)
			return
		}
	}
}

// tell sends what is new in the log or, without any, that the job still runs.
func (r *runner) tell(ctx context.Context, w *work, trace *jobLog) bool {
	if text, _ := trace.rest(); len(text) > 0 {
		return r.flush(ctx, w, trace)
	}
	goes, _ := r.update(ctx, w, "running", "", 0)
	return goes
}

// flush sends what is new in the log; false when the server wants no more of the job.
func (r *runner) flush(ctx context.Context, w *work, trace *jobLog) bool {
	text, from := trace.rest()
	if len(text) == 0 {
		return true
	}
	sent, goes, err := r.patch(ctx, w, text, from)
	if err != nil {
		r.log("WARNING: ", "Appending trace to coordinator... failed", "job", w.ID, "status", err)
	}
	trace.mu.Lock()
	trace.sent = sent
	trace.mu.Unlock()
	return goes
}

// sendRest sends the log to its end, so that the server has it before the job's last word.
func (r *runner) sendRest(ctx context.Context, w *work, trace *jobLog) {
	for range reportTries {
		goes := r.flush(ctx, w, trace)
		if left, _ := trace.rest(); len(left) == 0 || !goes {
			return
		}
	}
}

// conclude prints and reports how the job ended.
func (r *runner) conclude(ctx context.Context, w *work, trace *jobLog, took time.Duration, err, cause error) error {
	fields := []any{"duration_s", took.Seconds(), "job", w.ID, "project", w.JobInfo.ProjectID, "runner", short(r.token)}
	state, failure, code := "success", "", 0
	var exited *exec.ExitError
	switch {
	case errors.Is(cause, errCanceled):
		r.log("WARNING: ", "Job failed: canceled", fields...)
		return errCanceled
	case cause != nil:
		err, state, failure = errAborted, "failed", "runner_system_failure"
	case errors.As(err, &exited):
		state, failure, code = "failed", "script_failure", exited.ExitCode()
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
	for try := 1; ; try++ {
		goes, reported := r.update(ctx, w, state, failure, code)
		if reported == nil || !goes || try == reportTries {
			return err
		}
		r.log("WARNING: ", "Submitting job to coordinator... failed", "job", w.ID, "status", reported)
		time.Sleep(reportPause)
	}
}

var errTimeout = errors.New("execution took longer than the job's timeout")

// scripts runs the steps of a job, one after the other.
func (r *runner) scripts(ctx context.Context, w *work, trace *jobLog) error {
	dir := filepath.Join(r.builds, short(r.token), "0", filepath.FromSlash(w.JobInfo.ProjectName))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("prepare environment: %w", err)
	}
	limit, cancel := context.WithTimeoutCause(ctx, time.Duration(max(w.RunnerInfo.Timeout, 1))*time.Second, errTimeout)
	defer cancel()
	for _, step := range w.Steps {
		_, _ = fmt.Fprintf(trace, "Executing %q stage of the job script\n", "step_"+step.Name)
		if err := r.script(limit, w, dir, strings.Join(step.Script, "\n"), trace); err != nil {
			if errors.Is(context.Cause(limit), errTimeout) {
				return errTimeout
			}
			return err
		}
	}
	return nil
}

func (r *runner) script(ctx context.Context, w *work, dir, text string, trace *jobLog) error {
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", "set -e\n"+text)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, trace, trace
	cmd.Env = r.variables(w, dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run script: %w", err)
	}
	return nil
}

// variables are the runner's own, its token among them, as the shell executor has them;
// those of its settings; and the job's.
func (r *runner) variables(w *work, dir string) []string {
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
