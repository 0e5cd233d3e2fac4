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
	// Socket is the path of the Workload API's socket. It exists after the agent has attested.
	Socket string
	// Dir is the agent's directory.
	Dir string

	process *procrun.Process
}

// StartAgent starts an agent until the test ends. The agent attests with a join token, or if token is
// empty, with the node attestor that WithPlugin configures. StartAgent does not wait for the attestation,
// because an agent that the server rejects retries forever.
func (s *Server) StartAgent(t testing.TB, token string, opts ...Option) *Agent {
	t.Helper()

	s.mu.Lock()
	s.agents++
	dir := filepath.Join(s.Dir, fmt.Sprintf("agent-%d", s.agents))
	s.mu.Unlock()

	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatalf("start SPIRE agent: %v", err)
	}

	settings := applyOptions(s.TrustDomain, opts)
	if settings.bundle == "" {
		settings.bundle = s.Bundle(t)
	}

	if settings.address == "" {
		settings.address = s.Address
	}

	agent := &Agent{Socket: filepath.Join(dir, "agent.sock"), Dir: dir}
	agent.start(t, settings, token)

	return agent
}

func (a *Agent) path(name string) string { return filepath.Join(a.Dir, name) }

func (a *Agent) start(t testing.TB, settings options, token string) {
	t.Helper()

	program := findProgram(t, agentName)

	for name, text := range map[string]string{"bundle.pem": settings.bundle, "agent.conf": a.renderConfig(t, settings, token)} {
		if err := os.WriteFile(a.path(name), []byte(text), ownerOnly); err != nil {
			t.Fatalf("start SPIRE agent: %v", err)
		}
	}

	process, err := procrun.Start(context.Background(), procrun.Spec{
		Path: program, Args: []string{"run", "-config", a.path("agent.conf")}, Dir: a.Dir,
		LogPath: a.path("agent.log"), GracePeriod: grace,
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

// renderConfig returns the agent's configuration file (SPIRE's doc/spire_agent.md).
func (a *Agent) renderConfig(t testing.TB, settings options, token string) string {
	t.Helper()

	host, port, err := net.SplitHostPort(settings.address)
	if err != nil {
		t.Fatalf("parse address of SPIRE server: %v", err)
	}

	lines := []string{
		"agent {",
		formatSetting("data_dir", a.path("data")), formatSetting("log_level", "DEBUG"),
		formatSetting("trust_domain", settings.trustDomain),
		formatSetting("server_address", host), formatSetting("server_port", port),
		formatSetting("socket_path", a.Socket), formatSetting("trust_bundle_path", a.path("bundle.pem")),
	}

	if token != "" {
		lines = append(lines, formatSetting("join_token", token))
	}

	lines = append(lines, "}", "plugins {",
		`KeyManager "memory" { plugin_data {} }`,
		// Without discover_workload_path, the agent does not produce the selector unix:path.
		`WorkloadAttestor "unix" { plugin_data { discover_workload_path = true } }`,
	)

	if token != "" {
		lines = append(lines, `NodeAttestor "join_token" { plugin_data {} }`)
	}

	return strings.Join(append(append(lines, settings.plugins...), "}", ""), "\n")
}

// Stop stops the agent. It does nothing if the agent has already ended.
func (a *Agent) Stop(t testing.TB) {
	t.Helper()

	if err := a.process.Stop(); err != nil {
		t.Errorf("stop SPIRE agent: %v", err)
	}
}

// Done returns a channel that is closed when the agent has ended.
func (a *Agent) Done() <-chan struct{} { return a.process.Done() }

// Log returns the agent's log so far.
func (a *Agent) Log(t testing.TB) string {
	t.Helper()

	data, err := os.ReadFile(a.path("agent.log"))
	if err != nil {
		t.Fatal(err)
	}

	return string(data)
}

// Address returns the address of the Workload API in go-spiffe's format.
func (a *Agent) Address() string { return "unix://" + a.Socket }

// WaitForSVIDs waits until the agent has at least one X.509-SVID for this process, and returns all of them.
// An agent gets a new entry within 5 seconds. ctx limits the wait.
func (a *Agent) WaitForSVIDs(ctx context.Context) ([]*x509svid.SVID, error) {
	const retryInterval = 100 * time.Millisecond

	for {
		svids, err := a.fetchSVIDs(ctx)
		if err == nil {
			return svids, nil
		}

		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for SVID: %w: last error: %w", ctx.Err(), err)
		case <-a.Done():
			return nil, fmt.Errorf("wait for SVID: %w: %s", procrun.ErrExited, a.process.LogTail())
		case <-time.After(retryInterval):
		}
	}
}

func (a *Agent) fetchSVIDs(ctx context.Context) ([]*x509svid.SVID, error) {
	const fetchTimeout = 2 * time.Second

	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()

	svids, err := workloadapi.FetchX509SVIDs(ctx, workloadapi.WithAddr(a.Address()))
	if err != nil {
		return nil, fmt.Errorf("fetch X.509-SVIDs: %w", err)
	}

	return svids, nil
}

// FetchJWT returns a JWT-SVID of this process for an audience. Call WaitForSVIDs first.
func (a *Agent) FetchJWT(t testing.TB, audience string) string {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()

	svid, err := workloadapi.FetchJWTSVID(ctx, jwtsvid.Params{Audience: audience}, workloadapi.WithAddr(a.Address()))
	if err != nil {
		t.Fatalf("fetch JWT-SVID: %v", err)
	}

	return svid.Marshal()
}

// AgentProgram returns the path of spire-agent, for machines that start the agent themselves.
func AgentProgram(t testing.TB) string {
	t.Helper()

	return findProgram(t, agentName)
}
