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

// exitUsage is the exit code for invalid arguments.
const exitUsage = 2

// Run runs the simulated program that the first argument names, until the program or ctx ends. It
// returns the exit code, and false if no program has this name.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) (exitCode int, isKnown bool) {
	if len(args) == 0 {
		return exitUsage, false
	}
	run := map[string]func(context.Context, []string, io.Writer, io.Writer) int{
		"runner": runGitHub, "gitlab-runner": runGitLab, "buildkite-agent": runBuildkite,
		"forgejo-runner": runGitea, "act_runner": runGitea, "generic-job": runGeneric,
	}[args[0]]
	if run == nil {
		return exitUsage, false
	}
	return run(ctx, args[1:], stdout, stderr), true
}

// runGitHub runs the simulated GitHub runner.
func runGitHub(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := "."
	if len(args) >= 2 && args[0] == "--root" {
		root, args = args[1], args[2:]
	}
	program := simrunner.Program{Root: root, Stdout: stdout, Stderr: stderr, Getenv: os.Getenv}
	return program.Main(ctx, args)
}

// runGitLab runs the simulated gitlab-runner.
func runGitLab(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	program := gitlabrunner.Program{Stdout: stdout, Stderr: stderr, Getenv: os.Getenv}
	return program.Main(ctx, args)
}

// runBuildkite runs the simulated buildkite-agent. SIGQUIT cancels its job. The signals that end
// ctx let the job finish.
func runBuildkite(ctx context.Context, args []string, stdout, stderr io.Writer) int {
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

// runGitea runs the simulated act_runner and forgejo-runner.
func runGitea(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	program := gitearunner.Program{Stdout: stdout, Stderr: stderr}
	return program.Main(ctx, args)
}

// runGeneric runs the job that the environment names, like the command of a generic pool.
func runGeneric(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 {
		_, _ = fmt.Fprintln(stderr, "generic-job takes no arguments: the environment names its job")
		return exitUsage
	}
	host, err := os.Hostname()
	if err != nil {
		host = "" // the sender uses the name for display only
	}
	program := simjob.Program{Stdout: stdout, Stderr: stderr, Getenv: os.Getenv, Host: host}
	return program.Main(ctx)
}
