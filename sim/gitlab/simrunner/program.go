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

// Exit codes of the real one: a failed job is no failure of the runner.
const (
	ExitSuccess = 0
	ExitFatal   = 1
)

// version the runner claims to be.
const version = "18.9.0"

// Times of the real one.
const (
	checkInterval     = 3 * time.Second
	unhealthyInterval = 5 * time.Minute
)

// Program is one invocation.
type Program struct {
	Stdout io.Writer
	Stderr io.Writer
	Getenv func(string) string // default: os.Getenv
	// Check is how often a job is asked for; default 3 s. Unhealthy is how long a runner
	// that was refused waits; default 5 min.
	Check, Unhealthy time.Duration

	writing sync.Mutex
}

// settings are the options of run-single that matter here.
type settings struct {
	url, token, executor, shell, name, builds, cache, configFile string
	environment                                                  string
	maxBuilds, waitTimeout                                       int
}

// Main runs "run-single OPTIONS" and returns the exit code. When ctx ends (SIGTERM) a job
// that runs is aborted; SIGQUIT lets it end. As with the real one, a
// question for a job that is under way is waited for then, and a job that it brings is run.
func (p *Program) Main(ctx context.Context, args []string) int {
	p.setDefaults()
	if len(args) == 0 || args[0] != "run-single" {
		return p.fatal("the stand-in knows the command run-single only")
	}
	set, err := p.parse(args[1:])
	if err != nil {
		return p.fatal(err.Error())
	}
	for _, missing := range []struct{ value, what string }{
		{set.url, "Missing URL"}, {set.token, "Missing Token"}, {set.executor, "Missing Executor"},
	} {
		if missing.value == "" {
			return p.fatal(missing.what)
		}
	}
	if set.executor != "shell" {
		return p.fatal("Unknown executor: " + set.executor)
	}
	return p.run(ctx, set)
}

func (p *Program) setDefaults() {
	if p.Getenv == nil {
		p.Getenv = os.Getenv
	}
	if p.Check <= 0 {
		p.Check = checkInterval
	}
	if p.Unhealthy <= 0 {
		p.Unhealthy = unhealthyInterval
	}
}

func (p *Program) parse(args []string) (settings, error) {
	var set settings
	flags := flag.NewFlagSet("run-single", flag.ContinueOnError)
	flags.SetOutput(p.Stderr)
	option := func(into *string, variable string, names ...string) {
		for _, name := range names {
			flags.StringVar(into, name, p.Getenv(variable), "["+variable+"]")
		}
	}
	option(&set.url, "CI_SERVER_URL", "url", "u")
	option(&set.token, "CI_SERVER_TOKEN", "token", "t")
	option(&set.executor, "RUNNER_EXECUTOR", "executor")
	option(&set.shell, "RUNNER_SHELL", "shell")
	option(&set.name, "RUNNER_NAME", "name")
	option(&set.builds, "RUNNER_BUILDS_DIR", "builds-dir")
	option(&set.cache, "RUNNER_CACHE_DIR", "cache-dir")
	option(&set.environment, "RUNNER_ENV", "env")
	option(&set.configFile, "CONFIG_FILE", "config", "c")
	flags.IntVar(&set.maxBuilds, "max-builds", 0, "how many builds to process before exiting; 0 is without end")
	flags.IntVar(&set.waitTimeout, "wait-timeout", 0, "how long to wait in seconds before receiving the first job; 0 is for ever")
	if err := flags.Parse(args); err != nil {
		return set, fmt.Errorf("parse options: %w", err)
	}
	if flags.NArg() > 0 {
		return set, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if set.builds == "" {
		home, err := os.Getwd()
		if err != nil {
			return set, errors.New("find the builds folder: set --builds-dir")
		}
		set.builds = filepath.Join(home, "builds")
	}
	return set, nil
}

// runner is one run-single.
type runner struct {
	*Program
	settings

	client   *client
	systemID string
	left     int
	last     time.Time // of the last job's end, or of the start
	// idle ends with SIGQUIT too, which a job does not.
	idle context.Context //nolint:containedctx // the runner's life
	// heard is what the server's last answer without a job bore.
	heard string
}

func (p *Program) run(ctx context.Context, set settings) int {
	p.info("Runtime platform", "arch", "amd64", "os", "linux", "pid", os.Getpid(), "version", version)
	p.info(fmt.Sprintf("Starting runner for %s with token %s ...", set.url, short(set.token)))
	r := &runner{
		Program: p, settings: set, client: newClient(set.url), systemID: systemID(), left: set.maxBuilds, last: time.Now(),
	}
	idle, stop := signal.NotifyContext(ctx, syscall.SIGQUIT)
	defer stop()
	r.idle = idle
	for {
		r.turn(ctx)
		switch {
		case ctx.Err() != nil:
			p.log("WARNING: ", "Requested exit: terminated")
			return ExitSuccess
		case idle.Err() != nil:
			p.log("WARNING: ", "Requested quit, waiting for builds to finish")
			return ExitSuccess
		case r.finished():
			return ExitSuccess
		}
	}
}

// turn asks for one job and runs it, or waits for a while.
func (r *runner) turn(ctx context.Context) {
	work, healthy := r.request(ctx)
	switch {
	case !healthy:
		r.info("Runner is not healthy!")
		r.pause(r.Unhealthy)
	case work == nil:
		r.pause(r.Check)
	default:
		if err := r.build(ctx, work); err != nil {
			r.log("ERROR: ", "Failed to process build", "error", err, "job", work.ID)
		}
		r.last = time.Now()
		if r.left > 0 {
			r.left--
		}
	}
}

func (r *runner) pause(wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.idle.Done():
	}
}

func (r *runner) finished() bool {
	if r.maxBuilds > 0 && r.left < 1 {
		r.info("This runner has processed its build limit, so now exiting")
		return true
	}
	if r.waitTimeout > 0 && int(time.Since(r.last).Seconds()) > r.waitTimeout {
		r.info(fmt.Sprintf("This runner has not received a job in %d seconds, so now exiting", r.waitTimeout))
		return true
	}
	return false
}

// short is what logs tell of a token: nine characters, without its prefix.
func short(token string) string {
	token = strings.TrimPrefix(token, "glrt-")
	return token[:min(len(token), 9)]
}

func systemID() string {
	raw := make([]byte, 6)
	_, _ = rand.Read(raw) // never fails
	return "s_" + hex.EncodeToString(raw)
}

func (p *Program) fatal(message string) int {
	p.log("FATAL: ", message)
	return ExitFatal
}

func (p *Program) info(message string, fields ...any) { p.log("", message, fields...) }

// log writes a line as the real one does: the level, the message filled up, the fields.
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
