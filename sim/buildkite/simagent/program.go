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

// Exit codes of the real agent; that of the job itself with --reflect-exit-status.
const (
	ExitSuccess     = 0
	ExitFatal       = 1
	ExitNotAcquired = 27 // the job is taken, over or cancelled
	ExitJobLocked   = 28 // the job waits for something else
)

// version the agent claims to be.
const version = "3.130.0"

// Program is one invocation.
type Program struct {
	Stdout, Stderr io.Writer
	Getenv         func(string) string // default: os.Getenv
	// Abort, when closed, cancels the job, as SIGQUIT does. May be nil.
	Abort <-chan struct{}
	Delay time.Duration // between attempts when the server cannot be reached; default 1 s
}

// options of start that matter here.
type options struct {
	token, endpoint, name, job, buildPath string
	tags                                  []string
	reflect, logsToStdout                 bool
}

// Main runs "start ARGS" and returns the exit code. When ctx ends (SIGINT, SIGTERM) an
// agent without a job ends, and one with a job ends after it.
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
		return p.fatal(errors.New("the stand-in knows start and --version alone"))
	}
	opts, err := p.parse(args[1:])
	if err != nil {
		return p.fatal(err)
	}
	return p.start(ctx, opts)
}

// parse reads flags, and variables where a flag is not set.
func (p *Program) parse(args []string) (options, error) {
	var opts options
	flags := flag.NewFlagSet("start", flag.ContinueOnError)
	flags.SetOutput(p.Stderr)
	text := func(into *string, name, variable, fallback string) {
		if value := p.Getenv(variable); value != "" {
			fallback = value
		}
		flags.StringVar(into, name, fallback, "$"+variable)
	}
	yes := func(into *bool, name, variable string) {
		flags.BoolVar(into, name, p.Getenv(variable) == "true" || p.Getenv(variable) == "1", "$"+variable)
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
	yes(&opts.reflect, "reflect-exit-status", "BUILDKITE_AGENT_REFLECT_EXIT_STATUS")
	yes(&opts.logsToStdout, "write-job-logs-to-stdout", "BUILDKITE_WRITE_JOB_LOGS_TO_STDOUT")
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
		yes(&unused, name, variable)
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
	if err := opts.check(); err != nil {
		return opts, err
	}
	return opts, nil
}

func (o *options) check() error {
	switch {
	case o.token == "":
		return errors.New("missing token: set it with --token or $BUILDKITE_AGENT_TOKEN")
	case o.buildPath == "":
		return errors.New("missing build-path: set it with --build-path or $BUILDKITE_BUILD_PATH")
	case o.job == "":
		return errors.New("the stand-in takes the job of --acquire-job alone")
	}
	return nil
}

func (p *Program) fatal(err error) int {
	_, _ = fmt.Fprintf(p.Stderr, "buildkite-agent: fatal: %v\n", err)
	return ExitFatal
}

// sayf prints a line as the agent's logger does: time, level, the agent's name, text.
func (p *Program) sayf(level, agent, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if agent != "" {
		text = agent + " " + text
	}
	_, _ = fmt.Fprintf(p.Stderr, "%s %-6s %s\n", time.Now().Format("2006-01-02 15:04:05"), level, text)
}
