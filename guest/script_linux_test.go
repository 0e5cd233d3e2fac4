// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest_test

import "testing"

const isWindows = false

// What a configuration has that does not name scripts and programs.
const (
	configScript     = "config.sh"
	runnerScript     = "run.sh"
	gitlabProgram    = "/usr/bin/gitlab-runner"
	buildkiteProgram = "/usr/bin/buildkite-agent"
)

// noConfig is the error if the machine has no configuration.
const noConfig = "no such file"

// waitForMedium does nothing: on Linux, the service waits for nothing.
func (*machine) waitForMedium(*testing.T) {}

// Parts of scripts that print what the real runner prints.
const (
	printListening = `echo "2026-01-01 00:00:00Z: Listening for Jobs"; `
	printRunning   = `sh "$ACTIONS_RUNNER_HOOK_JOB_STARTED"; echo "2026-01-01 00:00:00Z: Running job: build"; `
	printCompleted = `echo "2026-01-01 00:00:00Z: Job build completed with result: Succeeded"; `
)

// newScript returns the name and the text of a script.
func newScript(name, text string) (scriptName, script string) {
	return name, "#!/bin/sh\n" + text + "\n"
}

// requireVariable is the part of a script that ends it if an environment variable has another value.
func requireVariable(name, value string) string {
	return `[ "$` + name + `" = ` + value + ` ] || exit 1; `
}
