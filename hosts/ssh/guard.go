// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package ssh

import (
	_ "embed"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/hosts/plan"
	"github.com/hyperfleet/hyperfleet/kit/log"
)

//go:embed guard.sh
var guard string

const (
	// timeoutCode is the exit code of the guard if the script timed out. timeoutMessage is the last
	// line on standard error in that case.
	timeoutCode    = 124
	timeoutMessage = "hyperfleet: %s was stopped after %d s"
	// startMessage is the line that the guard prints on standard output before the script starts.
	startMessage = "hyperfleet: output of %s\n"
)

// Script is a script to run on a host.
type Script struct {
	// Label names the script in messages and in the host's process list. It consists of lower-case
	// words with hyphens and must contain no secret.
	Label string
	// Input is the standard input of [plan.Interpreter]: the script and the script's input.
	Input io.Reader
	// Timeout after which the script is stopped. If it is 0, [DefaultTimeout] applies. The minimum
	// is one second.
	Timeout time.Duration
	// Concurrent lets the script run at the same time as another script. Otherwise the guard first
	// stops a script that an earlier connection has left running. It is meant for scripts that only
	// read.
	Concurrent bool
	// Secrets are redacted in the output and the errors.
	Secrets []log.Secret
}

// sudoMode is the command prefix with which a user becomes root.
type sudoMode string

const (
	sudoNone   sudoMode = ""
	sudoDirect sudoMode = "sudo -n "
	sudoPrompt sudoMode = "sudo -k -S -p '' "
)

// commandLine returns the command line for the user's shell, which may be sh, bash, zsh, fish or tcsh. In quotes, tcsh
// allows no line break and replaces "!", and fish removes backslashes before quotes and backslashes.
func commandLine(mode sudoMode, script Script) string {
	decode := `eval "$(printf %b "` + encodeForPrintf(guard) + `")"`
	line := fmt.Sprintf("%s/bin/bash -c %s hyperfleet-script %s %d",
		mode, plan.Quote(decode), plan.Quote(script.Label), seconds(script.Timeout))
	if script.Concurrent {
		line += " beside"
	}

	return line
}

// encodeForPrintf returns the argument with which bash's "printf %b" prints the text. It has one line and can stand in
// double quotes inside of single quotes, in every shell.
func encodeForPrintf(text string) string {
	var b strings.Builder

	for _, c := range []byte(text) {
		if strings.IndexByte("\n!\"$'\\`", c) >= 0 {
			fmt.Fprintf(&b, `\0%03o`, c)
		} else {
			b.WriteByte(c)
		}
	}

	return b.String()
}

// seconds returns the timeout as the guard takes it, in whole seconds and at least one.
func seconds(limit time.Duration) int { return max(1, int(limit.Round(time.Second).Seconds())) }

// withoutGreeting returns the output of a script without the text that the user's shell has printed before it, for
// example in its .bashrc.
func withoutGreeting(script Script, stdout string) string {
	if _, output, found := strings.Cut(stdout, fmt.Sprintf(startMessage, script.Label)); found {
		return output
	}

	return stdout
}

// hasTimedOut returns true if the guard stopped the script.
func hasTimedOut(script Script, code int, stderr string) bool {
	message := fmt.Sprintf(timeoutMessage, script.Label, seconds(script.Timeout))

	return code == timeoutCode && strings.HasSuffix(strings.TrimSpace(stderr), message)
}
