// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package forgesim

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/hyperfleet/hyperfleet/sim/forge/standin"
	"github.com/hyperfleet/hyperfleet/sim/github/simrunner"
)

const usage = `usage: forgesim COMMAND [options]

commands:
  github                       serve a simulated GitHub (forgesim github -h)
  gitlab                       serve a simulated GitLab (forgesim gitlab -h)
  gitlab-runner run-single     run the simulated gitlab-runner
  buildkite                    serve a simulated Buildkite (forgesim buildkite -h)
  buildkite-agent start ARGS   run the simulated buildkite-agent
  forgejo                      serve a simulated Forgejo (forgesim forgejo -h)
  forgejo-runner one-job ARGS  run the simulated forgejo-runner
  gitea                        serve a simulated Gitea (forgesim gitea -h)
  act_runner daemon            run the simulated act_runner
  runner [--root DIR] VERB     run the simulated GitHub runner: config, config remove, or run
  generic                      serve a simulated sender of jobs (forgesim generic -h)
  generic-job                  run the job of HYPERFLEET_JOB_ID and HYPERFLEET_JOB_URL
  image [--link] DIR           write the simulated runners to DIR/opt/actions-runner and DIR/usr/bin
`

// Exit codes of the simulators and of image. The simulated runners have the exit codes of the real programs.
const (
	exitOK        = 0
	exitError     = 1
	exitUsage     = 2
	exitViolation = 3 // the platform's contract was violated while the simulator ran
)

// Run runs one command until the command or ctx ends, and returns the exit code.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		printf(stderr, "%s", usage)
		return exitUsage
	}
	switch args[0] {
	case "--version": // as the real bin/Runner.Listener, which image makes this program
		printf(stdout, "%s\n", simrunner.Version)
		return exitOK
	case "github":
		return runSite(ctx, startGitHub, args[1:], stdout, stderr)
	case "gitlab":
		return runSite(ctx, startGitLab, args[1:], stdout, stderr)
	case "buildkite":
		return runSite(ctx, startBuildkite, args[1:], stdout, stderr)
	case "forgejo":
		return runSite(ctx, startGitea(asForgejo), args[1:], stdout, stderr)
	case "gitea":
		return runSite(ctx, startGitea(asGitea), args[1:], stdout, stderr)
	case "generic":
		return runSite(ctx, startGeneric, args[1:], stdout, stderr)
	case "image":
		return reportError(stderr, runImage(args[1:], stderr))
	}
	if code, known := standin.Run(ctx, args, stdout, stderr); known {
		return code
	}
	printf(stderr, "forgesim: unknown command %q\n\n%s", args[0], usage)
	return exitUsage
}

func printf(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }

func reportError(stderr io.Writer, err error) int {
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return exitOK
	default:
		printf(stderr, "forgesim: %v\n", err)
		return exitError
	}
}

// findRunnerProgram returns the path of the program that runs the simulated runners. This is the
// program standin in the folder of this program if it exists, since it starts faster. Otherwise it
// is this program, which has the same commands.
func findRunnerProgram() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	own := filepath.Join(filepath.Dir(self), "standin")
	if info, err := os.Stat(own); err == nil && info.Mode().IsRegular() {
		return own, nil
	}
	return self, nil
}

func runImage(args []string, stderr io.Writer) error {
	flags := flag.NewFlagSet("forgesim image", flag.ContinueOnError)
	flags.SetOutput(stderr)
	link := flags.Bool("link", false, "link to the program of the simulated runners instead of copying it")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		return errors.New("image needs exactly one folder")
	}
	program, err := findRunnerProgram()
	if err != nil {
		return err
	}
	if err := simrunner.Layout(flags.Arg(0), program, *link); err != nil {
		return err
	}
	if err := writeGitLabRunner(flags.Arg(0)); err != nil {
		return err
	}
	if err := writeBuildkiteAgent(flags.Arg(0)); err != nil {
		return err
	}
	if err := writeGiteaRunners(flags.Arg(0)); err != nil {
		return err
	}
	return writeGenericJob(flags.Arg(0))
}
