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
	// lateCode is how the guard ends when a script's time was up, and late how its last line
	// ends then.
	lateCode = 124
	late     = "hyperfleet: %s was ended after %d s"
)

// Script is something to run at a host.
type Script struct {
	// Label names it in messages and in the host's list of processes: lower case words with
	// hyphens, and nothing secret.
	Label string
	// Input is the script and what it reads, for [plan.Interpreter].
	Input io.Reader
	// Timeout after which it is ended; [DefaultTimeout] if zero. At least a second.
	Timeout time.Duration
	// Beside has it run beside another script, where otherwise one that an earlier connection
	// has left is ended first: for what reads alone, and is not the operator's.
	Beside bool
	// Secrets that must not be in what comes back.
	Secrets []log.Secret
}

// root is how a user becomes root.
type root string

const (
	asRoot    root = ""
	sudo      root = "sudo -n "
	sudoAsked root = "sudo -k -S -p '' "
)

// command is the line that the user's shell gets.
func command(as root, script Script) string {
	line := fmt.Sprintf("%s/bin/bash -c %s hyperfleet-script %s %d",
		as, plan.Quote(guard), plan.Quote(script.Label), seconds(script.Timeout))
	if script.Beside {
		line += " beside"
	}

	return line
}

func seconds(limit time.Duration) int { return max(1, int(limit.Round(time.Second).Seconds())) }

// wasLate says whether the guard has ended the script.
func wasLate(script Script, code int, stderr string) bool {
	return code == lateCode && strings.HasSuffix(strings.TrimSpace(stderr), fmt.Sprintf(late, script.Label, seconds(script.Timeout)))
}
