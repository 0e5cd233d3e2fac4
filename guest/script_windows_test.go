// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest_test

import (
	"strings"
	"testing"
	"time"
)

const isWindows = true

// What a configuration has that does not name scripts and programs.
const (
	configScript     = "config.cmd"
	runnerScript     = "run.cmd"
	gitlabProgram    = `C:\GitLab-Runner\gitlab-runner.exe`
	buildkiteProgram = `C:\buildkite-agent\bin\buildkite-agent.exe`
)

// noConfig is the error if the machine has no configuration.
const noConfig = "within 10m0s: no volume has the label cidata"

// waitForMedium lets the time pass in which the service waits for the machine's medium.
func (m *machine) waitForMedium(t *testing.T) {
	t.Helper()

	for range 10*60/2 + 1 {
		m.clock.waitAndFire(t, 2*time.Second)
	}
}

// Parts of scripts that print what the real runner prints.
const (
	printListening = "echo 2026-01-01 00:00:00Z: Listening for Jobs\r\n"
	printRunning   = "echo 2026-01-01 00:00:00Z: Running job: build\r\n"
	printCompleted = "echo 2026-01-01 00:00:00Z: Job build completed with result: Succeeded\r\n"
)

// newScript returns the name and the text of a script, which is run.cmd for run.sh.
func newScript(name, text string) (scriptName, script string) {
	return strings.TrimSuffix(name, ".sh") + ".cmd", "@echo off\r\n" + text
}

// requireVariable is the part of a script that ends it if an environment variable has another value.
func requireVariable(name, value string) string {
	return "if not \"%" + name + "%\"==\"" + value + "\" exit /b 1\r\n"
}
