// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package spire

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/svid/jwtsvid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"github.com/spiffe/go-spiffe/v2/workloadapi"

	"github.com/hyperfleet/hyperfleet/kit/procrun"
)

// Agent is a SPIRE agent.
type Agent struct {
	// Socket of the Workload API, as a path. It is there when the agent has attested.
	Socket string
	// Dir is the agent's folder.
	Dir string

	process *procrun.Process
}

// Agent starts an agent that attests with a join token, or, without one, with the node
// attestor that WithPlugin configures. It returns at once: an agent that its server refuses
// tries again for ever.
func (s *Server) Agent(t testing.TB, token string, opts ...Option) *Agent {
	t.Helper()

	s.mu.Lock()
	s.agents++
	dir := filepath.Join(s.Dir, fmt.Sprintf("agent-%d", s.agents))
	s.mu.Unlock()

	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatalf("start SPIRE agent: %v", err)
	}

	chosen := choose(s.TrustDomain, opts)
	if chosen.bundle == "" {
		chosen.bundle = s.Bundle(t)
	}

	if chosen.address == "" {
		chosen.address = s.Address
	}

	agent := &Agent{Socket: filepath.Join(dir, "agent.sock"), Dir: dir}
	agent.start(t, chosen, token)

	return agent
}

func (a *Agent) path(name string) string { return filepath.Join(a.Dir, name) }

func (a *Agent) start(t testing.TB, chosen options, token string) {
	t.Helper()

	program := find(t, agentName)

	for name, text := range map[string]string{"bundle.pem": chosen.bundle, "agent.conf": a.config(t, chosen, token)} {
		if err := os.WriteFile(a.path(name), []byte(text), ownerOnly); err != nil {
			t.Fatalf("start SPIRE agent: %v", err)
		}
	}

	process, err := procrun.Start(context.Background(), procrun.Spec{
		Path: program, Args: []string{"run", "-config", a.path("agent.conf")}, Dir: a.Dir, LogPath: a.path("agent.log"), Grace: grace,
	})
	if err != nil {
		t.Fatalf("start SPIRE agent: %v", err)
	}

	a.process = process

	t.Cleanup(func() {
		a.Stop(t)
		showLog(t, a.path("agent.log"))
	})
}

// config is the agent's configuration file (SPIRE's doc/spire_agent.md).
func (a *Agent) config(t testing.TB, chosen options, token string) string {
	t.Helper()

	host, port, err := net.SplitHostPort(chosen.address)
	if err != nil {
		t.Fatalf("address of SPIRE server: %v", err)
	}

	lines := []string{
		"agent {",
		setting("data_dir", a.path("data")), setting("log_level", "DEBUG"), setting("trust_domain", chosen.trustDomain),
		setting("server_address", host), setting("server_port", port),
		setting("socket_path", a.Socket), setting("trust_bundle_path", a.path("bundle.pem")),
	}

	if token != "" {
		lines = append(lines, setting("join_token", token))
	}

	lines = append(lines, "}", "plugins {",
		`KeyManager "memory" { plugin_data {} }`,
		// Without it the selector unix:path is not known.
		`WorkloadAttestor "unix" { plugin_data { discover_workload_path = true } }`,
	)

	if token != "" {
		lines = append(lines, `NodeAttestor "join_token" { plugin_data {} }`)
	}

	return strings.Join(append(append(lines, chosen.plugins...), "}", ""), "\n")
}

// Stop ends the agent. It does nothing to one that has ended.
func (a *Agent) Stop(t testing.TB) {
	t.Helper()

	if err := a.process.Stop(); err != nil {
		t.Errorf("stop SPIRE agent: %v", err)
	}
}

// Done is closed when the agent has ended.
func (a *Agent) Done() <-chan struct{} { return a.process.Done() }

// Log is what the agent has written so far.
func (a *Agent) Log(t testing.TB) string {
	t.Helper()

	data, err := os.ReadFile(a.path("agent.log"))
	if err != nil {
		t.Fatal(err)
	}

	return string(data)
}

// Address of the Workload API as go-spiffe takes it.
func (a *Agent) Address() string { return "unix://" + a.Socket }

// SVIDs gives the X.509-SVIDs that the agent has for this process, at least one. An entry
// reaches an agent within 5 seconds; ctx bounds the wait.
func (a *Agent) SVIDs(ctx context.Context) ([]*x509svid.SVID, error) {
	const again = 100 * time.Millisecond

	for {
		svids, err := a.svidsNow(ctx)
		if err == nil {
			return svids, nil
		}

		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for SVID: %w: last answer: %w", ctx.Err(), err)
		case <-a.Done():
			return nil, fmt.Errorf("wait for SVID: %w: %s", procrun.ErrEnded, a.process.LogTail())
		case <-time.After(again):
		}
	}
}

func (a *Agent) svidsNow(ctx context.Context) ([]*x509svid.SVID, error) {
	const answer = 2 * time.Second

	ctx, cancel := context.WithTimeout(ctx, answer)
	defer cancel()

	svids, err := workloadapi.FetchX509SVIDs(ctx, workloadapi.WithAddr(a.Address()))
	if err != nil {
		return nil, fmt.Errorf("fetch X.509-SVIDs: %w", err)
	}

	return svids, nil
}

// JWT gives a JWT-SVID of this process for an audience, after SVIDs has given an SVID.
func (a *Agent) JWT(t testing.TB, audience string) string {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()

	svid, err := workloadapi.FetchJWTSVID(ctx, jwtsvid.Params{Audience: audience}, workloadapi.WithAddr(a.Address()))
	if err != nil {
		t.Fatalf("fetch JWT-SVID: %v", err)
	}

	return svid.Marshal()
}

// AgentProgram is the path of spire-agent, for machines that run it themselves.
func AgentProgram(t testing.TB) string {
	t.Helper()

	return find(t, agentName)
}
