// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"encoding/base64"
	"strings"
)

// execution is a program that a simulated guest's agent has run.
type execution struct {
	out  string
	code int
}

// agentDo has a simulated guest do something; s.mu is held meanwhile. Guests
// under QEMU are not asked: their agent is reached for what tells of them only.
func agentDo(do func(*simGuest, *call) (any, error)) handler {
	return func(s *Server, c *call) (any, error) {
		run, err := s.agentOf(c)
		if err != nil {
			return nil, err
		}
		if _, err := run.agent(c.ctx, "guest-ping"); err != nil {
			return nil, err
		}
		sim, ok := run.guest.(interface{ simulated() *simGuest })
		if !ok {
			return nil, dief("programs and files of guests under QEMU are not simulated")
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		return do(sim.simulated(), c)
	}
}

func (g *simGuest) simulated() *simGuest { return g }

// exec runs what a simulated guest has: true, false, echo, and cat of files that
// the agent wrote.
func (g *simGuest) exec(c *call) (any, error) {
	words := c.words("command")
	var done execution
	switch name := words[0]; name {
	case "true":
	case "false":
		done.code = 1
	case "echo":
		done.out = strings.Join(words[1:], " ") + "\n"
	case "cat":
		for _, f := range words[1:] {
			text, ok := g.files[f]
			if !ok {
				done.code = 1
			}
			done.out += text
		}
	default:
		return nil, dief("Agent error: Guest agent command failed, error was 'Failed to execute child process \"%s\" "+
			"(No such file or directory)'", name)
	}
	g.execs = append(g.execs, done)
	return map[string]any{"pid": len(g.execs)}, nil
}

func (g *simGuest) execStatus(c *call) (any, error) {
	pid := c.num("pid")
	if pid < 1 || pid > len(g.execs) {
		return nil, dief("Agent error: Guest agent command failed, error was 'PID %d does not exist'", pid)
	}
	done := g.execs[pid-1]
	out := map[string]any{"exited": 1, "exitcode": done.code}
	if done.out != "" {
		out["out-data"] = done.out
	}
	return out, nil
}

func (g *simGuest) fileWrite(c *call) (any, error) {
	text := c.param("content")
	if c.has("encode") && !c.flag("encode") { // the caller has encoded it
		raw, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return nil, badParam("content", "invalid base64: %s", err)
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
