// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package simagent

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// Exit codes of the real agent. With --reflect-exit-status, the exit code is the job's exit code.
const (
	ExitSuccess     = 0
	ExitFatal       = 1
	ExitNotAcquired = 27 // the job is acquired, finished or cancelled
	ExitJobLocked   = 28 // the job waits for a dependency
)

// version is the version that the agent reports.
const version = "3.130.0"

// Program is one invocation of the agent.
type Program struct {
	Stdout, Stderr io.Writer
	Getenv         func(string) string // default: os.Getenv
	// Abort cancels the job if it is closed, like SIGQUIT. It may be nil.
	Abort <-chan struct{}
	Delay time.Duration // between attempts while the server is unreachable; default 1 s
}

// options are the options of start that the simulated agent uses.
type options struct {
	token, endpoint, name, job, buildPath string
	tags                                  []string
	reflectExitStatus, logsToStdout       bool
}

// Main runs "start ARGS" and returns the exit code. If ctx ends (SIGINT, SIGTERM), an agent without
// a job stops, and an agent with a job stops after the job.
func (p *Program) Main(ctx context.Context, args []string) int {
	if p.Getenv == nil {
		p.Getenv = os.Getenv
	}
	if p.Delay <= 0 {
		p.Delay = time.Second
	}
	if len(args) == 1 && (args[0] == "--version" || args[0] == "-v") {
		_, _ = fmt.Fprintf(p.Stdout, "buildkite-agent version %s\n", version)
		return ExitSuccess
	}
	if len(args) == 0 || args[0] != "start" {
		return p.fatal(errors.New("the simulated agent has only the command start and the flag --version"))
	}
	opts, err := p.parseOptions(args[1:])
	if err != nil {
		return p.fatal(err)
	}
	return p.start(ctx, opts)
}

// parseOptions parses the flags. The default of a flag is the value of its variable.
func (p *Program) parseOptions(args []string) (options, error) {
	var opts options
	flags := flag.NewFlagSet("start", flag.ContinueOnError)
	flags.SetOutput(p.Stderr)
	text := func(target *string, name, variable, fallback string) {
		if value := p.Getenv(variable); value != "" {
			fallback = value
		}
		flags.StringVar(target, name, fallback, "$"+variable)
	}
	boolean := func(target *bool, name, variable string) {
		flags.BoolVar(target, name, p.Getenv(variable) == "true" || p.Getenv(variable) == "1", "$"+variable)
	}
	var tags, queue, ignored string
	var unused bool
	text(&opts.token, "token", "BUILDKITE_AGENT_TOKEN", "")
	text(&opts.endpoint, "endpoint", "BUILDKITE_AGENT_ENDPOINT", "https://agent.buildkite.com/v3")
	text(&opts.name, "name", "BUILDKITE_AGENT_NAME", "")
	text(&opts.job, "acquire-job", "BUILDKITE_AGENT_ACQUIRE_JOB", "")
	text(&opts.buildPath, "build-path", "BUILDKITE_BUILD_PATH", "")
	text(&tags, "tags", "BUILDKITE_AGENT_TAGS", "")
	text(&queue, "queue", "BUILDKITE_AGENT_QUEUE", "")
	boolean(&opts.reflectExitStatus, "reflect-exit-status", "BUILDKITE_AGENT_REFLECT_EXIT_STATUS")
	boolean(&opts.logsToStdout, "write-job-logs-to-stdout", "BUILDKITE_WRITE_JOB_LOGS_TO_STDOUT")
	for name, variable := range map[string]string{
		"config": "BUILDKITE_AGENT_CONFIG", "hooks-path": "BUILDKITE_HOOKS_PATH", "plugins-path": "BUILDKITE_PLUGINS_PATH",
		"sockets-path": "BUILDKITE_SOCKETS_PATH", "log-level": "BUILDKITE_AGENT_LOG_LEVEL", "log-format": "BUILDKITE_LOG_FORMAT",
		"cancel-grace-period": "BUILDKITE_CANCEL_GRACE_PERIOD", "shell": "BUILDKITE_SHELL",
	} {
		text(&ignored, name, variable, "")
	}
	for name, variable := range map[string]string{
		"no-color": "BUILDKITE_AGENT_NO_COLOR", "debug": "BUILDKITE_AGENT_DEBUG",
		"disconnect-after-job": "BUILDKITE_AGENT_DISCONNECT_AFTER_JOB",
	} {
		boolean(&unused, name, variable)
	}
	if err := flags.Parse(args); err != nil {
		return opts, fmt.Errorf("parse options: %w", err)
	}
	for tag := range strings.SplitSeq(tags, ",") {
		if tag = strings.TrimSpace(tag); tag != "" {
			opts.tags = append(opts.tags, tag)
		}
	}
	if queue != "" {
		opts.tags = append(opts.tags, "queue="+queue)
	}
	if err := opts.validate(); err != nil {
		return opts, err
	}
	return opts, nil
}

func (o *options) validate() error {
	switch {
	case o.token == "":
		return errors.New("missing token: set it with --token or $BUILDKITE_AGENT_TOKEN")
	case o.buildPath == "":
		return errors.New("missing build-path: set it with --build-path or $BUILDKITE_BUILD_PATH")
	case o.job == "":
		return errors.New("the simulated agent needs --acquire-job")
	}
	return nil
}

func (p *Program) fatal(err error) int {
	_, _ = fmt.Fprintf(p.Stderr, "buildkite-agent: fatal: %v\n", err)
	return ExitFatal
}

// logf prints a line in the format of the agent's logger: time, level, the agent's name, text.
func (p *Program) logf(level, agent, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if agent != "" {
		text = agent + " " + text
	}
	_, _ = fmt.Fprintf(p.Stderr, "%s %-6s %s\n", time.Now().Format("2006-01-02 15:04:05"), level, text)
}
