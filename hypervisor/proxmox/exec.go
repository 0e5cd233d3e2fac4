// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/luthermonson/go-proxmox"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/retry"
)

var _ hypervisor.Executor = (*Provider)(nil)

const (
	execInterval = 200 * time.Millisecond
	// signalExitCode is added to the number of a signal, as shells report it.
	signalExitCode = 128
)

// execStatus is the status of a command that the guest agent runs.
type execStatus struct {
	Exited   flag       `json:"exited"`
	ExitCode int        `json:"exitcode"`
	Signal   int        `json:"signal"`
	Stdout   agentBytes `json:"out-data"`
	Stderr   agentBytes `json:"err-data"`
}

// agentBytes are bytes that Proxmox VE returns as a text with one character for each byte.
type agentBytes []byte

// UnmarshalText decodes the text. A text with other characters is one that Proxmox VE has decoded.
func (b *agentBytes) UnmarshalText(text []byte) error {
	out := make([]byte, 0, len(text))

	for _, char := range string(text) {
		if char > 0xff { //nolint:mnd // no byte
			*b = append(agentBytes(nil), text...)

			return nil
		}

		out = append(out, byte(char)) //nolint:gosec // at most 0xff
	}

	*b = out

	return nil
}

// Execute runs a command by the guest agent; see hypervisor.Executor.
func (p *Provider) Execute(ctx context.Context, ref hypervisor.MachineRef, command []string) (hypervisor.ExecResult, error) {
	m, err := p.getRunning(ctx, ref)
	if err != nil {
		return hypervisor.ExecResult{}, err
	}

	for _, part := range command {
		if !utf8.ValidString(part) {
			return hypervisor.ExecResult{}, hypervisor.Errorf(hypervisor.Rejected, reasonParameterRefused,
				"run a command in machine %s: the command is not UTF-8", m.Name)
		}
	}

	pid, err := p.client.startCommand(ctx, m, command)
	if err != nil {
		return hypervisor.ExecResult{}, err
	}

	for {
		status, err := p.client.readCommand(ctx, m, pid)
		if err != nil {
			return hypervisor.ExecResult{}, err
		}

		if status.Exited {
			out := hypervisor.ExecResult{Stdout: status.Stdout, Stderr: status.Stderr, ExitCode: status.ExitCode}
			if status.Signal != 0 {
				out.ExitCode = signalExitCode + status.Signal
			}

			return out, nil
		}

		if err := retry.Sleep(ctx, p.clock, execInterval); err != nil {
			return hypervisor.ExecResult{}, fmt.Errorf("run a command in machine %s: %w", m.Name, err)
		}
	}
}

// startCommand starts a command and returns its process ID.
func (c *client) startCommand(ctx context.Context, m hypervisor.Machine, command []string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()

	var started struct{ PID int }

	operation := "run a command in machine " + m.Name

	err := c.withSession(ctx, func(api *proxmox.Client) error {
		return api.Post(ctx, vmPath(m.Node, m.ID)+"/agent/exec", map[string]any{"command": command}, &started)
	})

	return started.PID, explainAgent(m, c.classify(operation, http.MethodPost, err))
}

func (c *client) readCommand(ctx context.Context, m hypervisor.Machine, pid int) (execStatus, error) {
	var out execStatus

	err := c.call(ctx, "read the result of a command in machine "+m.Name, http.MethodGet, vmPath(m.Node, m.ID)+"/agent/exec-status",
		map[string]string{"pid": strconv.Itoa(pid)}, &out)

	return out, explainAgent(m, err)
}

// explainAgent says what a machine lacks if its guest agent does not respond.
func explainAgent(m hypervisor.Machine, err error) error {
	if err == nil {
		return nil
	}

	switch text := err.Error(); {
	case strings.Contains(text, "guest agent is not running"), strings.Contains(text, "No QEMU guest agent configured"):
		return &hypervisor.Error{
			Kind: hypervisor.Rejected, Reason: "GuestAgentUnavailable", Err: err,
			Message: fmt.Sprintf("run a command in machine %s: its guest agent does not respond: install qemu-guest-agent in the image, "+
				"set agent=1 on the template, and wait until the machine has booted", m.Name),
		}
	case strings.Contains(text, "is not running"):
		return newNotRunningError(m.Name)
	default:
		return err
	}
}
