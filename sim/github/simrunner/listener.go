// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package simrunner

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/script"
	"github.com/hyperfleet/hyperfleet/sim/github/protocol"
)

const (
	renewInterval   = 5 * time.Second
	connectAttempts = 5
	pollAttempts    = 30
)

// deletedMessage is the message of the real runner if its registration was deleted.
const deletedMessage = "The runner registration has been deleted from the server, please re-configure."

// resultWords maps the results that the runner reports to the words that it prints.
var resultWords = map[string]string{ //nolint:gochecknoglobals // read-only table
	"succeeded": "Succeeded", "failed": "Failed", "canceled": "Canceled",
}

// listener is one run of run.sh: a session and its jobs.
type listener struct {
	*Program

	client  *client
	config  protocol.Config
	session string
}

func (p *Program) run(ctx context.Context, args []string) int {
	flags := flag.NewFlagSet("run", flag.ContinueOnError)
	flags.SetOutput(p.Stderr)
	encoded := flags.String("jitconfig", p.readInput("jitconfig"), "encoded JIT configuration")
	once := flags.Bool("once", false, "exit after one job")
	if err := flags.Parse(args); err != nil {
		return ExitTerminated
	}
	config, err := p.readSettings(*encoded)
	if err != nil {
		p.warnln(err)
		return ExitTerminated
	}
	l := &listener{Program: p, config: config, client: newClient(config.Runner.ServerURL, p.Delay, p.Clock)}
	if code, connected := l.connect(ctx); !connected {
		return code
	}
	return l.listen(ctx, *once || config.Runner.Ephemeral == "True")
}

func (p *Program) readSettings(encoded string) (protocol.Config, error) {
	if encoded == "" {
		return p.load()
	}
	config, err := protocol.DecodeJIT(encoded)
	if err != nil {
		return protocol.Config{}, fmt.Errorf("decode --jitconfig: %w", err)
	}
	return config, p.save(config)
}

// connect opens the session. If it fails, it returns the exit code and false.
func (l *listener) connect(ctx context.Context) (code int, connected bool) {
	var session protocol.SessionResponse
	err := l.client.retry(ctx, connectAttempts, func() error {
		if err := l.client.login(ctx, l.config); err != nil {
			return err
		}
		finish := context.WithoutCancel(ctx) // an open session must be known, so that close can end it
		_, err := l.client.call(finish, callTimeout, http.MethodPost, protocol.PathSessions, nil, &session)
		return err
	})
	var statusErr *statusError
	switch {
	case err == nil:
		l.session = session.SessionID
		l.printf("\n√ Connected to GitHub\n\nCurrent runner version: '%s'\n", Version)
		return ExitSuccess, true
	case ctx.Err() != nil:
		return ExitSuccess, false
	case hasStatus(err, http.StatusConflict):
		l.warnln("A session for this runner already exists.")
		return ExitSessionConflict, false
	case errors.As(err, &statusErr) && statusErr.code < 500:
		l.warnln("Failed to create a session. " + deletedMessage)
		return ExitTerminated, false
	}
	l.warnln("An error occurred:", err)
	return ExitRetryable, false
}

func (l *listener) logf(format string, args ...any) {
	l.printf(l.Clock.Now().UTC().Format("2006-01-02 15:04:05Z")+": "+format+"\n", args...)
}

// listen runs jobs until ctx ends. If once is set, it returns after one job.
func (l *listener) listen(ctx context.Context, once bool) int {
	l.logf("Listening for Jobs")
	for {
		message, err := l.poll(ctx)
		switch {
		case ctx.Err() != nil:
			l.println("Exiting...")
			l.close()
			return ExitSuccess
		case hasStatus(err, http.StatusUnauthorized):
			l.warnln(deletedMessage)
			return ExitTerminated
		case err != nil:
			l.warnln("An error occurred:", err)
			l.close()
			return ExitRetryable
		case message == nil:
			continue
		}
		hasRun := l.runJob(ctx, message)
		if hasRun && once {
			l.close()
			l.removeSettings()
			return ExitSuccess
		}
	}
}

func (l *listener) poll(ctx context.Context) (*protocol.Message, error) {
	var message protocol.Message
	var status int
	err := l.client.retry(ctx, pollAttempts, func() (err error) {
		status, err = l.client.call(ctx, pollTimeout, http.MethodGet,
			protocol.PathMessages+"?session="+l.session, nil, &message)
		return err
	})
	if err != nil || status == http.StatusNoContent {
		return nil, err
	}
	return &message, nil
}

// close ends the session. An error is ignored, because the end of the job may have removed the
// runner already.
func (l *listener) close() {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	_, _ = l.client.call(ctx, callTimeout, http.MethodDelete, protocol.PathSessions+"/"+l.session, nil, nil)
}

// runJob runs one job. It returns false if the job could not be acquired.
func (l *listener) runJob(ctx context.Context, message *protocol.Message) bool {
	path := protocol.PathJobs + "/" + strconv.FormatInt(message.JobID, 10)
	body := protocol.JobRequest{SessionID: l.session}
	finish := context.WithoutCancel(ctx) // a signal must not end the calls of an acquired job
	if _, err := l.client.call(finish, callTimeout, http.MethodPost, path+"/acquire", body, nil); err != nil {
		l.logf("Skipping message Job. Job message not found")
		return false
	}
	l.logf("Running job: %s", message.Name)
	body.Result = l.execute(ctx, message, path)
	if err := l.client.retry(finish, connectAttempts, func() error {
		_, err := l.client.call(finish, callTimeout, http.MethodPost, path+"/finish", body, nil)
		return err
	}); err != nil {
		l.warnln("report the job's result:", err)
	}
	l.logf("Job %s completed with result: %s", message.Name, resultWords[body.Result])
	return true
}

// execute runs the job and its hooks, and returns the result to report.
func (l *listener) execute(ctx context.Context, message *protocol.Message, path string) string {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	renewed := make(chan struct{})
	go func() {
		defer close(renewed)
		l.renew(ctx, cancel, path)
	}()
	result := "succeeded"
	for _, step := range []func() error{
		func() error { return l.runHook(ctx, "STARTED") },
		func() error { return l.runWork(ctx, message) },
	} {
		if err := step(); err != nil {
			result = "failed"
			l.warnln("##[error]", err)
			break
		}
	}
	if ctx.Err() != nil {
		result = "canceled"
	}
	if err := l.runHook(context.WithoutCancel(ctx), "COMPLETED"); err != nil && result == "succeeded" {
		result = "failed"
	}
	cancel()
	<-renewed
	return result
}

// renew renews the job at an interval. If the server cancels the job or has removed it, renew calls
// stop.
func (l *listener) renew(ctx context.Context, stop context.CancelFunc, path string) {
	tick := l.Clock.NewTicker(renewInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C():
		}
		var reply protocol.JobResponse
		_, err := l.client.call(ctx, callTimeout, http.MethodPost, path+"/renew",
			protocol.JobRequest{SessionID: l.session}, &reply)
		if reply.Cancelled || hasStatus(err, http.StatusNotFound) || hasStatus(err, http.StatusUnauthorized) {
			stop()
			return
		}
	}
}

// runHook runs the script that ACTIONS_RUNNER_HOOK_JOB_STARTED or _COMPLETED names.
func (l *listener) runHook(ctx context.Context, event string) error {
	hook := l.Getenv("ACTIONS_RUNNER_HOOK_JOB_" + event)
	if hook == "" {
		return nil
	}
	return l.runCommand(script.NewFile(ctx, hook, stepGrace))
}

func (l *listener) runWork(ctx context.Context, message *protocol.Message) error {
	if message.Command != "" {
		return l.runCommand(script.New(ctx, message.Command, stepGrace))
	}
	select {
	case <-l.Clock.After(message.Duration):
	case <-ctx.Done():
	}
	return nil
}

// stepGrace is how long a step may take to end.
const stepGrace = 5 * time.Second

func (l *listener) runCommand(cmd *exec.Cmd) error {
	dir := filepath.Join(l.Root, l.config.Runner.WorkFolder)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create work folder: %w", err)
	}
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, l.Stdout, l.Stderr
	cmd.Env = append(os.Environ(), "GITHUB_ACTIONS=true", "CI=true", "RUNNER_NAME="+l.config.Runner.AgentName)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run step: %w", err)
	}
	return nil
}
