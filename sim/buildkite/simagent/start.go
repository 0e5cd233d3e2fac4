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

	"github.com/hyperfleet/hyperfleet/sim/forge/script"
)

// Maximum numbers of attempts, as in the real agent.
const (
	registerAttempts   = 30
	connectAttempts    = 10
	acquireAttempts    = 7
	finishAttempts     = 12
	disconnectAttempts = 4
)

const (
	// statusNotRun is the exit status of a job whose command did not run.
	statusNotRun = -1
	// killGrace is the time between SIGTERM and SIGKILL for the command of a cancelled job.
	killGrace = 5 * time.Second
)

// acquiredJob is the job as the server sends it.
type acquiredJob struct {
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

	opts           options
	client         *client
	name           string
	statusInterval time.Duration // interval between requests for the job's state
}

func (p *Program) start(ctx context.Context, opts options) int {
	p.logf("NOTICE", "", "Starting buildkite-agent v%s with PID: %d", version, os.Getpid())
	if err := os.MkdirAll(opts.buildPath, 0o777); err != nil {
		return p.fatal(fmt.Errorf("failed to create builds path: %w", err))
	}
	a := &agent{Program: p, opts: opts, client: newClient(opts.endpoint, opts.token, p.Delay)}
	if err := a.register(ctx); err != nil {
		return p.fatal(err)
	}
	p.logf("INFO", "", "Starting 1 Agent(s)")
	p.logf("INFO", "", "You can press Ctrl-C to stop the agents")
	a.infof("Connecting to Buildkite...")
	if err := a.client.retry(ctx, connectAttempts, alwaysRetry, a.warnError, func() error {
		return a.client.call(ctx, http.MethodPost, "/connect", nil, nil)
	}); err != nil {
		return p.fatal(err)
	}
	job, err := a.acquire(ctx)
	if err == nil {
		code := a.run(job)
		a.disconnect()
		if a.opts.reflectExitStatus {
			return code & 0xff
		}
		return ExitSuccess
	}
	a.disconnect()
	switch {
	case ctx.Err() != nil:
		return ExitSuccess
	case hasStatus(err, http.StatusUnprocessableEntity):
		_, _ = fmt.Fprintf(p.Stderr, "failed to acquire job %q: failed to acquire job: job acquisition rejected: %v\n", opts.job, err)
		return ExitNotAcquired
	case hasStatus(err, http.StatusLocked):
		_, _ = fmt.Fprintf(p.Stderr, "failed to acquire job: job is locked: %v\n", err)
		return ExitJobLocked
	}
	// Like the real agent, it logs the error and returns success.
	a.logf("ERROR", a.name, "Failed to acquire and run job: failed to acquire job: %v", err)
	return ExitSuccess
}

func alwaysRetry(error) bool { return true }

func (a *agent) infof(format string, args ...any) { a.logf("INFO", a.name, format, args...) }
func (a *agent) warnError(err error)              { a.logf("WARN", a.name, "%v", err) }

// register registers the agent with the token and stores the access token of its session.
func (a *agent) register(ctx context.Context) error {
	a.logf("INFO", "", "Registering agent with Buildkite...")
	host, _ := os.Hostname()
	body := map[string]any{
		"name": a.opts.name, "hostname": host, "os": "linux", "arch": "amd64", "script_eval_enabled": true,
		"ignore_in_dispatches": true, "version": version, "build": "1", "meta_data": a.opts.tags, "pid": os.Getpid(),
		"features": []string{"acquire-job"},
	}
	var response struct {
		Name     string   `json:"name"`
		Token    string   `json:"access_token"`
		Interval int      `json:"job_status_interval"`
		Tags     []string `json:"meta_data"`
	}
	if err := a.client.retry(ctx, registerAttempts, isRetryable, a.warnError, func() error {
		return a.client.call(ctx, http.MethodPost, "/register", body, &response)
	}); err != nil {
		return err
	}
	a.name, a.client.token = response.Name, response.Token
	a.statusInterval = max(time.Duration(response.Interval)*time.Second, 100*time.Millisecond)
	a.logf("INFO", "", "Successfully registered agent \"%s\" with tags [%s]", response.Name, strings.Join(response.Tags, ", "))
	return nil
}

// acquire repeats the acquisition until it succeeds, the server rejects it, or acquireAttempts is
// reached.
func (a *agent) acquire(ctx context.Context) (*acquiredJob, error) {
	a.infof("Attempting to acquire job %s...", a.opts.job)
	var job acquiredJob
	shouldRetry := func(err error) bool { return isRetryable(err) || hasStatus(err, http.StatusLocked) }
	err := a.client.retry(ctx, acquireAttempts, shouldRetry, a.warnError, func() error {
		return a.client.send(ctx, http.MethodPut, "/jobs/"+a.opts.job+"/acquire", nil,
			map[string]string{"X-Buildkite-Lock-Acquire-Job": "1"}, &job)
	})
	if hasStatus(err, http.StatusUnprocessableEntity) {
		a.logf("ERROR", a.name, "Buildkite rejected the call to acquire the job: %v", err)
	}
	return &job, err
}

// disconnect pings the server once and ends the session.
func (a *agent) disconnect() {
	ctx := context.Background() // an open session must be closed
	_ = a.client.call(ctx, http.MethodGet, "/ping", nil, nil)
	a.infof("Disconnecting...")
	if err := a.client.retry(ctx, disconnectAttempts, isRetryable, a.warnError, func() error {
		return a.client.call(ctx, http.MethodPost, "/disconnect", nil, nil)
	}); err == nil {
		a.infof("Disconnected")
	}
}

// run runs the job and returns its exit status. A signal to the agent does not end the job.
func (a *agent) run(job *acquiredJob) int {
	ctx := context.Background()
	jobClient := newClient(a.opts.endpoint, job.Token, a.Delay)
	buildURL := job.Env["BUILDKITE_BUILD_URL"]
	a.infof("Starting job %s for build at %s", job.ID, buildURL)
	if err := jobClient.retry(ctx, acquireAttempts, isRetryable, a.warnError, func() error {
		return jobClient.call(ctx, http.MethodPut, "/jobs/"+job.ID+"/start", map[string]string{"started_at": formatNow()}, nil)
	}); err != nil {
		a.logf("WARN", a.name, "Buildkite rejected the call to start the job (%v)", err)
		return statusNotRun
	}
	result := a.execute(ctx, jobClient, job)
	body := map[string]any{
		"finished_at": formatNow(), "exit_status": strconv.Itoa(result.status), "chunks_failed_count": result.lostChunks,
	}
	if result.signal != "" {
		body["signal"] = result.signal
	}
	if result.reason != "" {
		body["signal_reason"] = result.reason
	}
	if err := jobClient.retry(ctx, finishAttempts, isRetryable, a.warnError, func() error {
		return jobClient.call(ctx, http.MethodPut, "/jobs/"+job.ID+"/finish", body, nil)
	}); err != nil {
		a.logf("ERROR", a.name, "Couldn't mark job as finished: %v", err)
	}
	a.infof("Finished job %s for build at %s", job.ID, buildURL)
	return result.status
}

func formatNow() string { return time.Now().UTC().Format(time.RFC3339Nano) }

// outcome is the result of a job's command.
type outcome struct {
	status         int
	signal, reason string
	lostChunks     int // number of chunks of the log that could not be uploaded
}

// execute runs the command, uploads its output, and cancels the command if the server cancels the
// job or the agent is aborted.
func (a *agent) execute(ctx context.Context, jobClient *client, job *acquiredJob) outcome {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var result outcome
	var output lockedBuffer
	cmd := a.newCommand(ctx, job, &output)
	if err := cmd.Start(); err != nil {
		result.status, result.reason = statusNotRun, "process_run_error"
		return result
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	tick := time.NewTicker(a.statusInterval)
	defer tick.Stop()
	var sent, sequence int
	upload := func() {
		data := output.take()
		if len(data) == 0 {
			return
		}
		sequence++
		if err := jobClient.uploadChunk(context.WithoutCancel(ctx), job.ID, sequence, sent, data); err != nil {
			result.lostChunks++
		}
		sent += len(data)
	}
	abort := a.Abort
	for {
		select {
		case err := <-ended:
			upload()
			result.status, result.signal = exitStatus(err)
			return result
		case <-abort:
			abort = nil
			result.reason = "agent_stop"
			a.infof("Canceling job %s with a signal grace period of %v (agent is stopping)", job.ID, killGrace)
			cancel()
		case <-tick.C:
			upload()
			if result.reason == "" && a.isCancelled(ctx, jobClient, job.ID) {
				result.reason = "cancel"
				a.infof("Canceling job %s with a signal grace period of %v (job cancelled on Buildkite)", job.ID, killGrace)
				cancel()
			}
		}
	}
}

func (a *agent) isCancelled(ctx context.Context, jobClient *client, id string) bool {
	var response struct {
		State string `json:"state"`
	}
	err := jobClient.call(ctx, http.MethodGet, "/jobs/"+id, nil, &response)
	return response.State == "canceling" || response.State == "canceled" || hasStatus(err, http.StatusUnauthorized)
}

func (a *agent) newCommand(ctx context.Context, job *acquiredJob, output *lockedBuffer) *exec.Cmd {
	dir := filepath.Join(a.opts.buildPath, a.name, job.Env["BUILDKITE_ORGANIZATION_SLUG"], job.Env["BUILDKITE_PIPELINE_SLUG"])
	if err := os.MkdirAll(dir, 0o777); err != nil {
		dir = a.opts.buildPath
	}
	cmd := script.New(ctx, job.Step.Command, killGrace)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, output, output
	if a.opts.logsToStdout {
		output.tee = a.Stdout
	}
	for _, pair := range os.Environ() {
		// The job must not see the agent's own token.
		if !strings.HasPrefix(pair, "BUILDKITE_AGENT_TOKEN=") {
			cmd.Env = append(cmd.Env, pair)
		}
	}
	for name, value := range job.Env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.Env = append(cmd.Env, "BUILDKITE_AGENT_NAME="+a.name,
		"BUILDKITE_AGENT_ACCESS_TOKEN="+job.Token, "BUILDKITE_BUILD_CHECKOUT_PATH="+dir)
	return cmd
}

// exitStatus returns the exit status of a command, or its signal.
func exitStatus(err error) (int, string) {
	var exitErr *exec.ExitError
	switch {
	case err == nil:
		return 0, ""
	case !errors.As(err, &exitErr):
		return statusNotRun, ""
	}
	if wait, ok := exitErr.Sys().(syscall.WaitStatus); ok && wait.Signaled() {
		names := map[syscall.Signal]string{syscall.SIGTERM: "SIGTERM", syscall.SIGKILL: "SIGKILL"}
		return 128 + int(wait.Signal()), names[wait.Signal()]
	}
	return exitErr.ExitCode(), ""
}

// lockedBuffer holds output until take returns it.
type lockedBuffer struct {
	mu   sync.Mutex
	data bytes.Buffer
	tee  interface{ Write(p []byte) (int, error) }
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.tee != nil {
		_, _ = b.tee.Write(p)
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
