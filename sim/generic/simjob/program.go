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
	"syscall"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/generic"
)

// Exit codes, beside those of the job's own command.
const (
	ExitOK = 0
	// ExitError: the job could not be done.
	ExitError = 70
	// ExitUsage: the environment is not that of a job.
	ExitUsage = 64
	// ExitStopped: it was told to stop.
	ExitStopped = 143
)

const (
	callTimeout = 10 * time.Second
	callTries   = 8
	callPause   = 100 * time.Millisecond
	killAfter   = 2 * time.Second
	maxReply    = 64 << 10
)

// Program is one run of the command.
type Program struct {
	Stdout, Stderr io.Writer
	Getenv         func(string) string
	// Host is who does the job; it may be empty.
	Host string
}

// Main does the job of the environment and returns the exit code. When ctx ends the job
// is cancelled.
func (p *Program) Main(ctx context.Context) int {
	id, url := p.Getenv("HYPERFLEET_JOB_ID"), p.Getenv("HYPERFLEET_JOB_URL")
	if id == "" || url == "" {
		p.complain("HYPERFLEET_JOB_ID and HYPERFLEET_JOB_URL must be set")
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
		p.complain(err.Error())
		return ExitUsage
	}
	// The sender hears of a job that was told to stop, too.
	tell := context.WithoutCancel(ctx)
	if err := c.call(tell, http.MethodPost, url+"/started", generic.Started{By: p.Host}, nil); err != nil {
		return p.fail(err)
	}
	p.printf("job %s (%s) started", job.ID, job.Name)
	code := p.work(ctx, job)
	conclusion := "success"
	switch {
	case ctx.Err() != nil:
		conclusion, code = "cancelled", ExitStopped
	case code != ExitOK:
		conclusion = "failure"
	}
	if err := c.call(tell, http.MethodPost, url+"/finished", generic.Finished{Conclusion: conclusion}, nil); err != nil {
		return p.fail(err)
	}
	p.printf("job %s finished: %s", job.ID, conclusion)
	return code
}

// check compares the environment with what the sender knows of the job.
func (p *Program) check(job generic.Job) error {
	for name, want := range map[string]string{
		"HYPERFLEET_JOB_ID": job.ID, "HYPERFLEET_JOB_NAME": job.Name, "HYPERFLEET_JOB_SOURCE": job.Source,
		"HYPERFLEET_JOB_LABELS": strings.Join(job.Labels, ","),
	} {
		if got := p.Getenv(name); got != want {
			return fmt.Errorf("%s is %q, the job's own is %q", name, got, want)
		}
	}
	return nil
}

// work does what the job asks for and gives its exit code.
func (p *Program) work(ctx context.Context, job generic.Job) int {
	if job.Command == "" {
		select {
		case <-ctx.Done():
		case <-time.After(job.Duration):
		}
		return ExitOK
	}
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", job.Command) // #nosec G204 -- the simulated job's own
	cmd.Stdout, cmd.Stderr = p.Stdout, p.Stderr
	// What it has started ends with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = killAfter
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil, errors.Is(err, exec.ErrWaitDelay):
		return ExitOK
	case errors.As(err, &exit) && exit.ExitCode() > 0:
		return exit.ExitCode()
	default:
		p.complain(err.Error())
		return ExitError
	}
}

func (p *Program) printf(format string, args ...any) {
	_, _ = fmt.Fprintf(p.Stdout, format+"\n", args...)
}

func (p *Program) complain(message string) {
	_, _ = fmt.Fprintf(p.Stderr, "generic-job: %s\n", message)
}

func (p *Program) fail(err error) int {
	p.complain(err.Error())
	return ExitError
}

// caller calls the sender of jobs.
type caller struct{ http *http.Client }

// call makes one call, again and again while the sender cannot be reached or is in
// trouble.
func (c caller) call(ctx context.Context, method, url string, body, into any) error {
	wait := callPause
	for try := 1; ; try++ {
		again, err := c.once(ctx, method, url, body, into)
		if err == nil || !again || try == callTries {
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

// once makes one call; again says that another try may help.
func (c caller) once(ctx context.Context, method, url string, body, into any) (again bool, err error) {
	text, err := json.Marshal(body)
	if err != nil {
		return false, fmt.Errorf("write %s: %w", url, err)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(text))
	if err != nil {
		return false, fmt.Errorf("make request to %s: %w", url, err)
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
		return true, fmt.Errorf("read reply of %s: %w", url, err)
	case resp.StatusCode/100 != 2:
		again = resp.StatusCode >= 500 && resp.StatusCode != http.StatusNotImplemented
		return again, fmt.Errorf("%s %s: %s: %s", method, url, resp.Status, reply)
	case into == nil:
		return false, nil
	}
	if err := json.Unmarshal(reply, into); err != nil {
		return false, fmt.Errorf("read reply of %s: %w", url, err)
	}
	return false, nil
}
