// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"encoding/base64"
	"strings"
)

// execution is the result of a program that the agent of a simulated guest has run.
type execution struct {
	out  string
	code int
}

// newSimGuestHandler returns a handler that calls command for a simulated guest and holds s.mu
// meanwhile. For guests under QEMU, the handler returns an error, because only the commands that
// read the guest's state reach their agent.
func newSimGuestHandler(command func(*simGuest, *call) (any, error)) handler {
	return func(s *Server, c *call) (any, error) {
		run, err := s.findAgent(c)
		if err != nil {
			return nil, err
		}
		if _, err := run.runAgentCommand(c.ctx, "guest-ping"); err != nil {
			return nil, err
		}
		sim, ok := run.guest.(interface{ simulated() *simGuest })
		if !ok {
			return nil, dief("programs and files of guests under QEMU are not simulated")
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		return command(sim.simulated(), c)
	}
}

func (g *simGuest) simulated() *simGuest { return g }

// exec runs one of the programs of a simulated guest: true, false, echo, and cat of files that the
// agent has written.
func (g *simGuest) exec(c *call) (any, error) {
	command := c.listParam("command")
	var result execution
	switch name := command[0]; name {
	case "true":
	case "false":
		result.code = 1
	case "echo":
		result.out = strings.Join(command[1:], " ") + "\n"
	case "cat":
		for _, f := range command[1:] {
			text, ok := g.files[f]
			if !ok {
				result.code = 1
			}
			result.out += text
		}
	default:
		return nil, dief("Agent error: Guest agent command failed, error was 'Failed to execute child process \"%s\" "+
			"(No such file or directory)'", name)
	}
	g.execs = append(g.execs, result)
	return map[string]any{"pid": len(g.execs)}, nil
}

func (g *simGuest) execStatus(c *call) (any, error) {
	pid := c.intParam("pid")
	if pid < 1 || pid > len(g.execs) {
		return nil, dief("Agent error: Guest agent command failed, error was 'PID %d does not exist'", pid)
	}
	result := g.execs[pid-1]
	out := map[string]any{"exited": 1, "exitcode": result.code}
	if result.out != "" {
		out["out-data"] = encodeAgentBytes(result.out)
	}
	return out, nil
}

// encodeAgentBytes returns a text with one character for each byte, as Perl encodes bytes that are no text.
func encodeAgentBytes(data string) string {
	out := make([]rune, 0, len(data))
	for _, b := range []byte(data) {
		out = append(out, rune(b))
	}
	return string(out)
}

func (g *simGuest) fileWrite(c *call) (any, error) {
	text := c.param("content")
	if c.hasParam("encode") && !c.boolParam("encode") { // the caller has encoded it
		raw, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return nil, newParamError("content", "invalid base64: %s", err)
		}
		text = string(raw)
	}
	if g.files == nil {
		g.files = map[string]string{}
	}
	g.files[c.param("file")] = text
	return nil, nil //nolint:nilnil // "data": null
}

func (g *simGuest) fileRead(c *call) (any, error) {
	text, ok := g.files[c.param("file")]
	if !ok {
		return nil, dief("can't open file: Guest agent command failed, error was 'failed to open file '%s' (mode: 'rb'): "+
			"No such file or directory'", c.param("file"))
	}
	return map[string]any{"content": text, "bytes-read": len(text)}, nil
}
