// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package simjob

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/script"
	"github.com/hyperfleet/hyperfleet/sim/generic"
)

// Exit codes in addition to those of the job's own command.
const (
	ExitOK = 0
	// ExitError means that the job could not be run.
	ExitError = 70
	// ExitUsage means that the environment is not that of the job.
	ExitUsage = 64
	// ExitStopped means that a signal has stopped the job.
	ExitStopped = 143
)

const (
	callTimeout  = 10 * time.Second
	callAttempts = 8
	callDelay    = 100 * time.Millisecond
	killAfter    = 2 * time.Second
	maxReply     = 64 << 10
)

// Program is one run of the command.
type Program struct {
	Stdout, Stderr io.Writer
	Getenv         func(string) string
	// Host is the name of the host that runs the job. It may be empty.
	Host string
}

// Main runs the job that the environment names, and returns the exit code. If ctx ends, Main
// cancels the job.
func (p *Program) Main(ctx context.Context) int {
	id, url := p.Getenv("HYPERFLEET_JOB_ID"), p.Getenv("HYPERFLEET_JOB_URL")
	if id == "" || url == "" {
		p.printError("HYPERFLEET_JOB_ID and HYPERFLEET_JOB_URL must be set")
		return ExitUsage
	}
	client := &http.Client{Timeout: callTimeout, Transport: &http.Transport{Proxy: nil}}
	defer client.CloseIdleConnections()
	c := caller{client}
	var job generic.Job
	if err := c.call(ctx, http.MethodGet, url, nil, &job); err != nil {
		return p.fail(err)
	}
	if err := p.check(job); err != nil {
		p.printError(err.Error())
		return ExitUsage
	}
	// The sender also receives the reports of a job that a signal has stopped.
	reportCtx := context.WithoutCancel(ctx)
	if err := c.call(reportCtx, http.MethodPost, url+"/started", generic.StartRequest{By: p.Host}, nil); err != nil {
		return p.fail(err)
	}
	p.printf("job %s (%s) started", job.ID, job.Name)
	code := p.runJob(ctx, job)
	conclusion := "success"
	switch {
	case ctx.Err() != nil:
		conclusion, code = "cancelled", ExitStopped
	case code != ExitOK:
		conclusion = "failure"
	}
	if err := c.call(reportCtx, http.MethodPost, url+"/finished", generic.FinishRequest{Conclusion: conclusion}, nil); err != nil {
		return p.fail(err)
	}
	p.printf("job %s finished: %s", job.ID, conclusion)
	return code
}

// check compares the environment with the job of the sender.
func (p *Program) check(job generic.Job) error {
	for name, want := range map[string]string{
		"HYPERFLEET_JOB_ID": job.ID, "HYPERFLEET_JOB_NAME": job.Name, "HYPERFLEET_JOB_SOURCE": job.Source,
		"HYPERFLEET_JOB_LABELS": strings.Join(job.Labels, ","),
	} {
		if got := p.Getenv(name); got != want {
			return fmt.Errorf("%s is %q, the job has %q", name, got, want)
		}
	}
	return nil
}

// runJob does the work of the job and returns its exit code.
func (p *Program) runJob(ctx context.Context, job generic.Job) int {
	if job.Command == "" {
		select {
		case <-ctx.Done():
		case <-time.After(job.Duration):
		}
		return ExitOK
	}
	cmd := script.New(ctx, job.Command, killAfter)
	cmd.Stdout, cmd.Stderr = p.Stdout, p.Stderr
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil, errors.Is(err, exec.ErrWaitDelay):
		return ExitOK
	case errors.As(err, &exit) && exit.ExitCode() > 0:
		return exit.ExitCode()
	default:
		p.printError(err.Error())
		return ExitError
	}
}

func (p *Program) printf(format string, args ...any) {
	_, _ = fmt.Fprintf(p.Stdout, format+"\n", args...)
}

func (p *Program) printError(message string) {
	_, _ = fmt.Fprintf(p.Stderr, "generic-job: %s\n", message)
}

func (p *Program) fail(err error) int {
	p.printError(err.Error())
	return ExitError
}

// caller makes calls to the sender of jobs.
type caller struct{ http *http.Client }

// call makes one call, and retries it while the sender is unreachable or responds with 5xx.
func (c caller) call(ctx context.Context, method, url string, body, target any) error {
	wait := callDelay
	for attempt := 1; ; attempt++ {
		canRetry, err := c.callOnce(ctx, method, url, body, target)
		if err == nil || !canRetry || attempt == callAttempts {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
		wait *= 2
	}
}

// callOnce makes one call. canRetry means that a retry may succeed.
func (c caller) callOnce(ctx context.Context, method, url string, body, target any) (canRetry bool, err error) {
	text, err := json.Marshal(body)
	if err != nil {
		return false, fmt.Errorf("encode request to %s: %w", url, err)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(text))
	if err != nil {
		return false, fmt.Errorf("build request to %s: %w", url, err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		return true, fmt.Errorf("call the sender of jobs: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	reply, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	switch {
	case err != nil:
		return true, fmt.Errorf("read response of %s: %w", url, err)
	case resp.StatusCode/100 != 2:
		canRetry = resp.StatusCode >= 500 && resp.StatusCode != http.StatusNotImplemented
		return canRetry, fmt.Errorf("%s %s: %s: %s", method, url, resp.Status, reply)
	case target == nil:
		return false, nil
	}
	if err := json.Unmarshal(reply, target); err != nil {
		return false, fmt.Errorf("decode response of %s: %w", url, err)
	}
	return false, nil
}
