// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package standin

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/hyperfleet/hyperfleet/sim/buildkite/simagent"
	"github.com/hyperfleet/hyperfleet/sim/generic/simjob"
	gitearunner "github.com/hyperfleet/hyperfleet/sim/gitea/simrunner"
	"github.com/hyperfleet/hyperfleet/sim/github/simrunner"
	gitlabrunner "github.com/hyperfleet/hyperfleet/sim/gitlab/simrunner"
)

// exitUsage is the code for wrong arguments.
const exitUsage = 2

// Run runs the stand-in that the first argument names until it is done or ctx ends, and returns
// its exit code; false where there is none of the name.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) (int, bool) {
	if len(args) == 0 {
		return exitUsage, false
	}
	run := map[string]func(context.Context, []string, io.Writer, io.Writer) int{
		"runner": gitHub, "gitlab-runner": gitLab, "buildkite-agent": buildkite,
		"forgejo-runner": gitea, "act_runner": gitea, "generic-job": generic,
	}[args[0]]
	if run == nil {
		return exitUsage, false
	}
	return run(ctx, args[1:], stdout, stderr), true
}

// gitHub is the stand-in for GitHub's runner.
func gitHub(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := "."
	if len(args) >= 2 && args[0] == "--root" {
		root, args = args[1], args[2:]
	}
	program := simrunner.Program{Root: root, Stdout: stdout, Stderr: stderr, Getenv: os.Getenv}
	return program.Main(ctx, args)
}

// gitLab is the stand-in for gitlab-runner.
func gitLab(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	program := gitlabrunner.Program{Stdout: stdout, Stderr: stderr, Getenv: os.Getenv}
	return program.Main(ctx, args)
}

// buildkite is the stand-in for buildkite-agent. SIGQUIT cancels its job; the signals that end
// ctx let it finish.
func buildkite(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	quit, abort := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(quit, syscall.SIGQUIT)
	defer signal.Stop(quit)
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-quit:
			close(abort)
		case <-done:
		}
	}()
	program := simagent.Program{Stdout: stdout, Stderr: stderr, Getenv: os.Getenv, Abort: abort}
	return program.Main(ctx, args)
}

// gitea is the stand-in for act_runner and forgejo-runner.
func gitea(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	program := gitearunner.Program{Stdout: stdout, Stderr: stderr}
	return program.Main(ctx, args)
}

// generic does the job of the environment, as the command of a generic pool does.
func generic(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 {
		_, _ = fmt.Fprintln(stderr, "generic-job takes no arguments: its job is in the environment")
		return exitUsage
	}
	host, err := os.Hostname()
	if err != nil {
		host = "" // only for people
	}
	program := simjob.Program{Stdout: stdout, Stderr: stderr, Getenv: os.Getenv, Host: host}
	return program.Main(ctx)
}
