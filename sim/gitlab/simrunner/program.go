// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package simrunner

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Exit codes of the real program. A failed job is not a failure of the runner.
const (
	ExitSuccess = 0
	ExitFatal   = 1
)

// version is the version that the runner reports.
const version = "18.9.0"

// Intervals of the real program.
const (
	checkInterval     = 3 * time.Second
	unhealthyInterval = 5 * time.Minute
)

// Program is one invocation of the runner.
type Program struct {
	Stdout io.Writer
	Stderr io.Writer
	Getenv func(string) string // default: os.Getenv
	// Check is the interval between requests for a job; default 3 s. Unhealthy is the delay after
	// the server has rejected the runner; default 5 min.
	CheckInterval, UnhealthyDelay time.Duration

	writing sync.Mutex
}

// settings are the options of run-single that the simulated runner uses.
type settings struct {
	url, token, executor, shell, name, buildsDir, cacheDir, configFile string
	environment                                                        string
	maxBuilds, waitTimeout                                             int
}

// Main runs "run-single OPTIONS" and returns the exit code. If ctx ends (SIGTERM), Main aborts a
// running job. After SIGQUIT, Main lets a running job finish. As with the real program, Main then
// still waits for the response to an open request for a job, and runs a job in the response.
func (p *Program) Main(ctx context.Context, args []string) int {
	p.setDefaults()
	if len(args) == 0 || args[0] != "run-single" {
		return p.fatal("the simulated runner has only the command run-single")
	}
	opts, err := p.parseOptions(args[1:])
	if err != nil {
		return p.fatal(err.Error())
	}
	for _, missing := range []struct{ value, message string }{
		{opts.url, "Missing URL"}, {opts.token, "Missing Token"}, {opts.executor, "Missing Executor"},
	} {
		if missing.value == "" {
			return p.fatal(missing.message)
		}
	}
	if opts.executor != "shell" {
		return p.fatal("Unknown executor: " + opts.executor)
	}
	return p.run(ctx, opts)
}

func (p *Program) setDefaults() {
	if p.Getenv == nil {
		p.Getenv = os.Getenv
	}
	if p.CheckInterval <= 0 {
		p.CheckInterval = checkInterval
	}
	if p.UnhealthyDelay <= 0 {
		p.UnhealthyDelay = unhealthyInterval
	}
}

func (p *Program) parseOptions(args []string) (settings, error) {
	var opts settings
	flags := flag.NewFlagSet("run-single", flag.ContinueOnError)
	flags.SetOutput(p.Stderr)
	option := func(target *string, variable string, names ...string) {
		for _, name := range names {
			flags.StringVar(target, name, p.Getenv(variable), "["+variable+"]")
		}
	}
	option(&opts.url, "CI_SERVER_URL", "url", "u")
	option(&opts.token, "CI_SERVER_TOKEN", "token", "t")
	option(&opts.executor, "RUNNER_EXECUTOR", "executor")
	option(&opts.shell, "RUNNER_SHELL", "shell")
	option(&opts.name, "RUNNER_NAME", "name")
	option(&opts.buildsDir, "RUNNER_BUILDS_DIR", "builds-dir")
	option(&opts.cacheDir, "RUNNER_CACHE_DIR", "cache-dir")
	option(&opts.environment, "RUNNER_ENV", "env")
	option(&opts.configFile, "CONFIG_FILE", "config", "c")
	flags.IntVar(&opts.maxBuilds, "max-builds", 0, "number of builds to process before exiting; 0 is unlimited")
	flags.IntVar(&opts.waitTimeout, "wait-timeout", 0, "seconds to wait for the first job before exiting; 0 is unlimited")
	if err := flags.Parse(args); err != nil {
		return opts, fmt.Errorf("parse options: %w", err)
	}
	if flags.NArg() > 0 {
		return opts, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if opts.buildsDir == "" {
		home, err := os.Getwd()
		if err != nil {
			return opts, errors.New("find the builds folder: set --builds-dir")
		}
		opts.buildsDir = filepath.Join(home, "builds")
	}
	return opts, nil
}

// runner is one run of run-single.
type runner struct {
	*Program
	settings

	client    *client
	systemID  string
	remaining int
	lastEnd   time.Time // end of the last job, or the start of the runner
	// idleCtx ends with ctx, and also with SIGQUIT, which does not end a job.
	idleCtx context.Context //nolint:containedctx // the lifetime of the runner
	// lastUpdate is the value of X-GitLab-Last-Update in the last response without a job.
	lastUpdate string
}

func (p *Program) run(ctx context.Context, opts settings) int {
	p.info("Runtime platform", "arch", "amd64", "os", "linux", "pid", os.Getpid(), "version", version)
	p.info(fmt.Sprintf("Starting runner for %s with token %s ...", opts.url, shorten(opts.token)))
	r := &runner{
		Program: p, settings: opts, client: newClient(opts.url), systemID: newSystemID(),
		remaining: opts.maxBuilds, lastEnd: time.Now(),
	}
	idle, stop := signal.NotifyContext(ctx, syscall.SIGQUIT)
	defer stop()
	r.idleCtx = idle
	for {
		r.runOnce(ctx)
		switch {
		case ctx.Err() != nil:
			p.log("WARNING: ", "Requested exit: terminated")
			return ExitSuccess
		case idle.Err() != nil:
			p.log("WARNING: ", "Requested quit, waiting for builds to finish")
			return ExitSuccess
		case r.isFinished():
			return ExitSuccess
		}
	}
}

// runOnce requests a job and runs it. If there is no job, runOnce waits.
func (r *runner) runOnce(ctx context.Context) {
	work, healthy := r.requestJob(ctx)
	switch {
	case !healthy:
		r.info("Runner is not healthy!")
		r.sleep(r.UnhealthyDelay)
	case work == nil:
		r.sleep(r.CheckInterval)
	default:
		if err := r.build(ctx, work); err != nil {
			r.log("ERROR: ", "Failed to process build", "error", err, "job", work.ID)
		}
		r.lastEnd = time.Now()
		if r.remaining > 0 {
			r.remaining--
		}
	}
}

func (r *runner) sleep(wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.idleCtx.Done():
	}
}

func (r *runner) isFinished() bool {
	if r.maxBuilds > 0 && r.remaining < 1 {
		r.info("This runner has processed its build limit, so now exiting")
		return true
	}
	if r.waitTimeout > 0 && int(time.Since(r.lastEnd).Seconds()) > r.waitTimeout {
		r.info(fmt.Sprintf("This runner has not received a job in %d seconds, so now exiting", r.waitTimeout))
		return true
	}
	return false
}

// shorten returns the part of a token that logs contain: nine characters without the prefix.
func shorten(token string) string {
	token = strings.TrimPrefix(token, "glrt-")
	return token[:min(len(token), 9)]
}

func newSystemID() string {
	raw := make([]byte, 6)
	_, _ = rand.Read(raw) // never fails
	return "s_" + hex.EncodeToString(raw)
}

func (p *Program) fatal(message string) int {
	p.log("FATAL: ", message)
	return ExitFatal
}

func (p *Program) info(message string, fields ...any) { p.log("", message, fields...) }

// log prints a line in the format of the real program: the level, the padded message, and the
// fields.
func (p *Program) log(level, message string, fields ...any) {
	line := level + message
	for i := 0; i+1 < len(fields); i += 2 {
		if i == 0 {
			line = fmt.Sprintf("%-50s", line)
		}
		line += fmt.Sprintf("  %v=%v", fields[i], fields[i+1])
	}
	p.writing.Lock()
	defer p.writing.Unlock()
	_, _ = fmt.Fprintln(p.Stderr, line)
}
