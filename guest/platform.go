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

// Workload types, as Config.Platform names them.
const (
	platformGitHub    = "github-actions"
	platformGitLab    = "gitlab-ci"
	platformBuildkite = "buildkite"
	platformForgejo   = "forgejo-actions"
	platformGitea     = "gitea-actions"
	platformGeneric   = "generic"
)

// platform is what the service has to know of a CI platform's runner program. It holds
// nothing: what is known of a runner is in its watch.
type platform interface {
	// check fills in the platform's defaults and finds the first thing that cannot work.
	check(c *guest.Config) error

	// program is the file that must be in the machine; "" where there is none to look for.
	program(c *guest.Config) string

	// prepare does what comes before the runner's start: a registration.
	prepare(ctx context.Context, s *Service, c *guest.Config, who *account) error

	// launch says how the runner is run.
	launch(s *Service, c *guest.Config) launch

	// read says what a line of the runner's output means, and false if nothing.
	read(line string) (event, bool)

	// verdict says how the machine ends after a runner that exited without a job's end
	// and without being told to stop; nil starts it again.
	verdict(w *watch, exit int) *end

	// credentials are the machine's files that hold credentials of the runner.
	credentials(c *guest.Config) []string
}

// platformOf gives the platform of a workload type, nil if there is none.
func platformOf(name string) platform {
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

// launch is how a runner is run. Paths are those of this process, with the root before
// them.
type launch struct {
	path string
	args []string
	// env is added to the service's own. Secrets go here: the argument list is for all
	// to see.
	env []string
	dir string
	// hooks: the runner calls scripts when its job begins and ends.
	hooks bool
	// job is set where the command does that job from its start to its end.
	job string
	// success and failure are the platform's words for a job's result where the exit code
	// tells it.
	success, failure string
	// quit asks a runner without a job to end, abort one with a job. Where they differ, a
	// runner that was asked to quit finishes a job that reached it at the same time.
	quit, abort syscall.Signal
	// grace is how long a runner may take to quit; zero means Options.StopGrace.
	grace time.Duration
}

// patient says that a runner that was asked to quit finishes a job that comes still.
func (l launch) patient() bool { return l.quit != l.abort }

// event is something seen of a runner.
type event struct {
	kind eventKind
	text string
	// result of the job in the platform's word, with eventCompleted.
	result string
}

type eventKind int

const (
	eventListening eventKind = iota
	eventRunning             // text: the job's name
	eventCompleted           // text: how the job went; "" if the runner tells it by its exit code
	eventEnding              // the job is being ended; text and result: how it will have gone
	eventRestart             // the runner restarts itself
	eventRetry               // the runner waits for long after a passing error: it is started anew
	eventRefused             // text: why the platform will never take this runner
	eventTrouble             // text: how the runner's script says that it ended
)

// ansi are the colours in which programs print even into a pipe.
var ansi = regexp.MustCompile("\x1b\\[[0-9;]*[A-Za-z]")

// plain takes the colours out of a line.
func plain(line string) string {
	if strings.IndexByte(line, '\x1b') < 0 {
		return line
	}

	return ansi.ReplaceAllString(line, "")
}

// setting is one variable of an environment.
func setting(name, value string) string { return name + "=" + value }

// without drops what begins with one of the prefixes.
func without(env []string, prefixes ...string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(e string) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(e, p) })
	})
}
