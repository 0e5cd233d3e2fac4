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
  gitlab-runner run-single     stand-in gitlab-runner
  buildkite                    serve a simulated Buildkite (forgesim buildkite -h)
  buildkite-agent start ARGS   stand-in buildkite-agent
  forgejo                      serve a simulated Forgejo (forgesim forgejo -h)
  forgejo-runner one-job ARGS  stand-in forgejo-runner
  gitea                        serve a simulated Gitea (forgesim gitea -h)
  act_runner daemon            stand-in act_runner
  runner [--root DIR] VERB     stand-in runner: config, config remove, or run
  generic                      serve a simulated sender of jobs (forgesim generic -h)
  generic-job                  do the job of HYPERFLEET_JOB_ID and HYPERFLEET_JOB_URL
  image [--link] DIR           lay out DIR/opt/actions-runner, and the other stand-ins in DIR/usr/bin
`

// Exit codes of the simulators and of image; the stand-ins have the codes of what they stand for.
const (
	exitOK        = 0
	exitError     = 1
	exitUsage     = 2
	exitViolation = 3 // somebody broke the platform's contract while the simulator ran
)

// Run runs one command until it is done or ctx ends, and returns the exit code.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		printf(stderr, "%s", usage)
		return exitUsage
	}
	switch args[0] {
	case "github":
		return runSite(ctx, startGitHub, args[1:], stdout, stderr)
	case "gitlab":
		return runSite(ctx, startGitLab, args[1:], stdout, stderr)
	case "buildkite":
		return runSite(ctx, startBuildkite, args[1:], stdout, stderr)
	case "forgejo":
		return runSite(ctx, startGitea(true), args[1:], stdout, stderr)
	case "gitea":
		return runSite(ctx, startGitea(false), args[1:], stdout, stderr)
	case "generic":
		return runSite(ctx, startGeneric, args[1:], stdout, stderr)
	case "image":
		return report(stderr, runImage(args[1:], stderr))
	}
	if code, known := standin.Run(ctx, args, stdout, stderr); known {
		return code
	}
	printf(stderr, "forgesim: unknown command %q\n\n%s", args[0], usage)
	return exitUsage
}

func printf(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }

func report(stderr io.Writer, err error) int {
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return exitOK
	default:
		printf(stderr, "forgesim: %v\n", err)
		return exitError
	}
}

// standIn is the program of the stand-ins: the one of their own where it is beside this one, since
// it starts in less time, or else this one, which has them too.
func standIn() (string, error) {
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
	link := flags.Bool("link", false, "link to the stand-ins' program instead of copying it")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		return errors.New("image needs one folder")
	}
	program, err := standIn()
	if err != nil {
		return err
	}
	if err := simrunner.Layout(flags.Arg(0), program, *link); err != nil {
		return err
	}
	if err := layGitLabRunner(flags.Arg(0)); err != nil {
		return err
	}
	if err := layBuildkiteAgent(flags.Arg(0)); err != nil {
		return err
	}
	if err := layGiteaRunners(flags.Arg(0)); err != nil {
		return err
	}
	return layGenericJob(flags.Arg(0))
}
