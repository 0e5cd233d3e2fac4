// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package simagent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Attempts, as the real agent makes them.
const (
	registerTries = 30
	connectTries  = 10
	acquireTries  = 7
	finishTries   = 12
	leaveTries    = 4
)

// Exit statuses of a job whose command did not end by itself.
const (
	statusNotRun = -1
	killGrace    = 5 * time.Second
)

// acquired is the job as the server gives it.
type acquired struct {
	ID    string            `json:"id"`
	Env   map[string]string `json:"env"`
	Token string            `json:"token"`
	Step  struct {
		Command string `json:"command"`
	} `json:"step"`
}

// agent is a registered agent.
type agent struct {
	*Program

	opts   options
	client *client
	name   string
	every  time.Duration // between looks at the job's state
}

func (p *Program) start(ctx context.Context, opts options) int {
	p.sayf("NOTICE", "", "Starting buildkite-agent v%s with PID: %d", version, os.Getpid())
	if err := os.MkdirAll(opts.buildPath, 0o777); err != nil {
		return p.fatal(fmt.Errorf("failed to create builds path: %w", err))
	}
	a := &agent{Program: p, opts: opts, client: newClient(opts.endpoint, opts.token, p.Delay)}
	if err := a.register(ctx); err != nil {
		return p.fatal(err)
	}
	p.sayf("INFO", "", "Starting 1 Agent(s)")
	p.sayf("INFO", "", "You can press Ctrl-C to stop the agents")
	a.infof("Connecting to Buildkite...")
	if err := a.client.retry(ctx, connectTries, always, a.warn, func() error {
		return a.client.call(ctx, http.MethodPost, "/connect", nil, nil)
	}); err != nil {
		return p.fatal(err)
	}
	job, err := a.acquire(ctx)
	if err == nil {
		exit := a.run(job)
		a.leave()
		if a.opts.reflect {
			return exit & 0xff
		}
		return ExitSuccess
	}
	a.leave()
	switch {
	case ctx.Err() != nil:
		return ExitSuccess
	case refusedWith(err, http.StatusUnprocessableEntity):
		_, _ = fmt.Fprintf(p.Stderr, "failed to acquire job %q: failed to acquire job: job acquisition rejected: %v\n", opts.job, err)
		return ExitNotAcquired
	case refusedWith(err, http.StatusLocked):
		_, _ = fmt.Fprintf(p.Stderr, "failed to acquire job: job is locked: %v\n", err)
		return ExitJobLocked
	}
	// As the real agent: it has logged the error, and ends as if all were well.
	a.sayf("ERROR", a.name, "Failed to acquire and run job: failed to acquire job: %v", err)
	return ExitSuccess
}

func always(error) bool { return true }

func (a *agent) infof(format string, args ...any) { a.sayf("INFO", a.name, format, args...) }
func (a *agent) warn(err error)                   { a.sayf("WARN", a.name, "%v", err) }

// register trades the token for a session.
func (a *agent) register(ctx context.Context) error {
	a.sayf("INFO", "", "Registering agent with Buildkite...")
	host, _ := os.Hostname()
	body := map[string]any{
		"name": a.opts.name, "hostname": host, "os": "linux", "arch": "amd64", "script_eval_enabled": true,
		"ignore_in_dispatches": true, "version": version, "build": "1", "meta_data": a.opts.tags, "pid": os.Getpid(),
		"features": []string{"acquire-job"},
	}
	var got struct {
		Name     string   `json:"name"`
		Token    string   `json:"access_token"`
		Interval int      `json:"job_status_interval"`
		Tags     []string `json:"meta_data"`
	}
	if err := a.client.retry(ctx, registerTries, retryable, a.warn, func() error {
		return a.client.call(ctx, http.MethodPost, "/register", body, &got)
	}); err != nil {
		return err
	}
	a.name, a.client.token = got.Name, got.Token
	a.every = max(time.Duration(got.Interval)*time.Second, 100*time.Millisecond)
	a.sayf("INFO", "", "Successfully registered agent \"%s\" with tags [%s]", got.Name, strings.Join(got.Tags, ", "))
	return nil
}

// acquire tries until the job is had, refused or locked for long.
func (a *agent) acquire(ctx context.Context) (*acquired, error) {
	a.infof("Attempting to acquire job %s...", a.opts.job)
	var job acquired
	again := func(err error) bool { return retryable(err) || refusedWith(err, http.StatusLocked) }
	err := a.client.retry(ctx, acquireTries, again, a.warn, func() error {
		return a.client.send(ctx, http.MethodPut, "/jobs/"+a.opts.job+"/acquire", nil,
			map[string]string{"X-Buildkite-Lock-Acquire-Job": "1"}, &job)
	})
	if refusedWith(err, http.StatusUnprocessableEntity) {
		a.sayf("ERROR", a.name, "Buildkite rejected the call to acquire the job: %v", err)
	}
	return &job, err
}

// leave looks once whether the server wants something, and ends the session.
func (a *agent) leave() {
	ctx := context.Background() // a session that is open must be closed
	_ = a.client.call(ctx, http.MethodGet, "/ping", nil, nil)
	a.infof("Disconnecting...")
	if err := a.client.retry(ctx, leaveTries, retryable, a.warn, func() error {
		return a.client.call(ctx, http.MethodPost, "/disconnect", nil, nil)
	}); err == nil {
		a.infof("Disconnected")
	}
}

// run does the job and gives its exit status. It ends when the job does, whatever signal
// asked the agent to go.
func (a *agent) run(job *acquired) int {
	ctx := context.Background()
	work := newClient(a.opts.endpoint, job.Token, a.Delay)
	where := job.Env["BUILDKITE_BUILD_URL"]
	a.infof("Starting job %s for build at %s", job.ID, where)
	if err := work.retry(ctx, acquireTries, retryable, a.warn, func() error {
		return work.call(ctx, http.MethodPut, "/jobs/"+job.ID+"/start", map[string]string{"started_at": timestamp()}, nil)
	}); err != nil {
		a.sayf("WARN", a.name, "Buildkite rejected the call to start the job (%v)", err)
		return statusNotRun
	}
	done := a.execute(ctx, work, job)
	body := map[string]any{
		"finished_at": timestamp(), "exit_status": strconv.Itoa(done.status), "chunks_failed_count": done.lost,
	}
	if done.signal != "" {
		body["signal"] = done.signal
	}
	if done.reason != "" {
		body["signal_reason"] = done.reason
	}
	if err := work.retry(ctx, finishTries, retryable, a.warn, func() error {
		return work.call(ctx, http.MethodPut, "/jobs/"+job.ID+"/finish", body, nil)
	}); err != nil {
		a.sayf("ERROR", a.name, "Couldn't mark job as finished: %v", err)
	}
	a.infof("Finished job %s for build at %s", job.ID, where)
	return done.status
}

func timestamp() string { return time.Now().UTC().Format(time.RFC3339Nano) }

// outcome is how a job's command ended.
type outcome struct {
	status         int
	signal, reason string
	lost           int // pieces of the log
}

// execute runs the command, uploads its output, and cancels it when the server or a
// signal says so.
func (a *agent) execute(ctx context.Context, work *client, job *acquired) outcome {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var done outcome
	var output lockedBuffer
	cmd := a.command(ctx, job, &output)
	if err := cmd.Start(); err != nil {
		done.status, done.reason = statusNotRun, "process_run_error"
		return done
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	tick := time.NewTicker(a.every)
	defer tick.Stop()
	var sent, sequence int
	upload := func() {
		data := output.take()
		if len(data) == 0 {
			return
		}
		sequence++
		if err := work.chunk(context.WithoutCancel(ctx), job.ID, sequence, sent, data); err != nil {
			done.lost++
		}
		sent += len(data)
	}
	abort := a.Abort
	for {
		select {
		case err := <-ended:
			upload()
			done.status, done.signal = status(err)
			return done
		case <-abort:
			abort = nil
			done.reason = "agent_stop"
			a.infof("Canceling job %s with a signal grace period of %v (agent is stopping)", job.ID, killGrace)
			cancel()
		case <-tick.C:
			upload()
			if done.reason == "" && a.cancelled(ctx, work, job.ID) {
				done.reason = "cancel"
				a.infof("Canceling job %s with a signal grace period of %v (job cancelled on Buildkite)", job.ID, killGrace)
				cancel()
			}
		}
	}
}

func (a *agent) cancelled(ctx context.Context, work *client, id string) bool {
	var got struct {
		State string `json:"state"`
	}
	err := work.call(ctx, http.MethodGet, "/jobs/"+id, nil, &got)
	return got.State == "canceling" || got.State == "canceled" || refusedWith(err, http.StatusUnauthorized)
}

func (a *agent) command(ctx context.Context, job *acquired, output *lockedBuffer) *exec.Cmd {
	dir := filepath.Join(a.opts.buildPath, a.name, job.Env["BUILDKITE_ORGANIZATION_SLUG"], job.Env["BUILDKITE_PIPELINE_SLUG"])
	if err := os.MkdirAll(dir, 0o777); err != nil {
		dir = a.opts.buildPath
	}
	cmd := exec.CommandContext(ctx, "/bin/sh", "-e", "-c", job.Step.Command)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, output, output
	if a.opts.logsToStdout {
		output.also = a.Stdout
	}
	for _, pair := range os.Environ() {
		// The agent's own token is not for the job.
		if !strings.HasPrefix(pair, "BUILDKITE_AGENT_TOKEN=") {
			cmd.Env = append(cmd.Env, pair)
		}
	}
	for name, value := range job.Env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.Env = append(cmd.Env, "BUILDKITE_AGENT_NAME="+a.name,
		"BUILDKITE_AGENT_ACCESS_TOKEN="+job.Token, "BUILDKITE_BUILD_CHECKOUT_PATH="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = killGrace
	return cmd
}

// status reads how a command ended: its exit status, or its signal.
func status(err error) (int, string) {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0, ""
	case !errors.As(err, &exit):
		return statusNotRun, ""
	}
	if wait, ok := exit.Sys().(syscall.WaitStatus); ok && wait.Signaled() {
		names := map[syscall.Signal]string{syscall.SIGTERM: "SIGTERM", syscall.SIGKILL: "SIGKILL"}
		return 128 + int(wait.Signal()), names[wait.Signal()]
	}
	return exit.ExitCode(), ""
}

// lockedBuffer collects output until it is taken.
type lockedBuffer struct {
	mu   sync.Mutex
	data bytes.Buffer
	also interface{ Write(p []byte) (int, error) }
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.also != nil {
		_, _ = b.also.Write(p)
	}
	return b.data.Write(p)
}

func (b *lockedBuffer) take() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := bytes.Clone(b.data.Bytes())
	b.data.Reset()
	return out
}
