// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hyperfleet/hyperfleet/api/guest"
)

// Values of Config.Platform.
const (
	platformGitHub    = "github-actions"
	platformGitLab    = "gitlab-ci"
	platformBuildkite = "buildkite"
	platformForgejo   = "forgejo-actions"
	platformGitea     = "gitea-actions"
	platformGeneric   = "generic"
)

// platform describes the runner program of a CI platform. It has no state. The state of a runner is in its
// runnerWatch.
type platform interface {
	// validate sets the platform's defaults and returns an error for the first invalid field.
	validate(c *guest.Config) error

	// programPath returns the path of the file that must exist in the machine, or "" if no file is required.
	programPath(c *guest.Config) string

	// prepare prepares the start of the runner, e.g. by registering it.
	prepare(ctx context.Context, s *Service, c *guest.Config, runAs *account) error

	// newLaunch returns how to run the runner.
	newLaunch(s *Service, c *guest.Config) launch

	// parseLine returns the event that a line of the runner's output describes, and false if it describes
	// none.
	parseLine(line string) (event, bool)

	// endAfterExit returns how the machine ends after the runner has exited, although its job has not
	// finished and the service has not stopped it. If it returns nil, the runner is restarted.
	endAfterExit(w *runnerWatch, code int) *endError

	// credentialFiles returns the machine's files that contain credentials of the runner.
	credentialFiles(c *guest.Config) []string
}

// platformFor returns the platform with the name, and nil if the service does not support it.
func platformFor(name string) platform {
	switch name {
	case platformGitHub:
		return gitHub{}
	case platformGitLab:
		return gitLab{}
	case platformBuildkite:
		return buildkite{}
	case platformForgejo:
		return forgejo{}
	case platformGitea:
		return gitea{}
	case platformGeneric:
		return generic{}
	default:
		return nil
	}
}

func platformNames() []string {
	return []string{platformGitHub, platformGitLab, platformBuildkite, platformForgejo, platformGitea, platformGeneric}
}

// launch describes how to run a runner. Its paths include Options.Root.
type launch struct {
	path string
	args []string
	// env is added to the environment of the service. Secrets belong in env, because all processes can read
	// the arguments.
	env []string
	dir string
	// hasHooks is true if the runner calls scripts when its job starts and ends.
	hasHooks bool
	// jobID is the ID of the job if the command itself is the job.
	jobID string
	// success and failure are the platform's names of a job's result if the result is taken from the exit
	// code.
	success, failure string
	// quit is the signal that stops a runner without a job. abort is the signal that stops a runner with a
	// job. If they differ, a runner that has received quit still finishes a job that arrives at the same
	// time.
	quit, abort syscall.Signal
	// grace is how long a runner may take to stop after quit. Zero means Options.StopGrace.
	grace time.Duration
}

// finishesLateJob returns whether a runner that has received the signal quit finishes a job that arrives
// after it.
func (l launch) finishesLateJob() bool { return l.quit != l.abort }

// event is an observation about a runner.
type event struct {
	kind eventKind
	text string
	// result is the job's result as the platform names it, with eventCompleted and eventCanceling.
	result string
}

type eventKind int

const (
	eventListening  eventKind = iota
	eventRunning              // text: the job's name
	eventCompleted            // text: the job's result; "" if the exit code determines it
	eventCanceling            // the job is being canceled; text and result: the job's future result
	eventVersion              // text: the release of the runner
	eventRestart              // the runner restarts itself
	eventRetry                // the runner waits long after a transient error and has to be restarted
	eventRejected             // text: why the platform will never accept this runner
	eventExitReason           // text: the reason that the runner's script prints for its exit
)

// ansiEscape matches the colours that programs print even to a pipe.
var ansiEscape = regexp.MustCompile("\x1b\\[[0-9;]*[A-Za-z]")

// stripANSI removes ANSI escape sequences, such as colors, from a line.
func stripANSI(line string) string {
	if strings.IndexByte(line, '\x1b') < 0 {
		return line
	}

	return ansiEscape.ReplaceAllString(line, "")
}

func formatVariable(name, value string) string { return name + "=" + value }

// withoutPrefixes returns the variables whose names start with none of the prefixes.
func withoutPrefixes(env []string, prefixes ...string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(e string) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(foldVariable(e), p) })
	})
}
