// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package buildkitetest

import (
	"context"
	"io"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/buildkite"
	"github.com/hyperfleet/hyperfleet/sim/buildkite/simagent"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/forge/forgetest"
)

// Defaults of New for empty options.
const (
	Organization = "acme"
	Repo         = "acme/app"
	Queue        = "default"
	Token        = "bkct_simulatedclusteragenttoken0000000" // only the simulator accepts this token
)

// Server is a simulator that a test serves on loopback.
type Server struct {
	*buildkite.Server
	forgetest.Served

	Endpoint string // of the agent API, with /v3
}

// New starts a simulator that stops with the test. By default, the simulator has the token Token.
// The test fails if a request violated Buildkite's API. A test that causes violations on purpose
// calls ExpectViolations.
func New(t testing.TB, opts buildkite.Options) *Server {
	t.Helper()
	if len(opts.Tokens) == 0 {
		opts.Tokens = []string{Token}
	}
	sim, err := buildkite.New(opts)
	if err != nil {
		t.Fatalf("start simulated Buildkite: %v", err)
	}
	s := &Server{Server: sim}
	served, url := forgetest.Serve(t, "Buildkite", sim)
	s.Served, s.Endpoint = served, url+"/v3"
	return s
}

// Queue queues jobs and fails the test if the simulator rejects them.
func (s *Server) Queue(spec control.JobSpec) []control.Job {
	s.T.Helper()
	if spec.Repo == "" {
		spec.Repo = Repo
	}
	return s.MustQueue(spec)
}

// Agent is a simulated agent inside the test process.
type Agent struct {
	*forgetest.Program

	Abort func() // like SIGQUIT
}

// StartAgent runs the simulated buildkite-agent for a job, with a token, in a folder of its own.
// env may override its environment.
func (s *Server) StartAgent(t testing.TB, job, token string, env map[string]string) *Agent {
	t.Helper()
	all := map[string]string{
		"BUILDKITE_AGENT_TOKEN": token, "BUILDKITE_AGENT_ENDPOINT": s.Endpoint, "BUILDKITE_BUILD_PATH": t.TempDir(),
		"BUILDKITE_AGENT_NAME": "agent-1", "BUILDKITE_AGENT_TAGS": "queue=" + Queue,
	}
	maps.Copy(all, env)
	abort := make(chan struct{})
	a := &Agent{Abort: sync.OnceFunc(func() { close(abort) })}
	a.Program = forgetest.Start(t, func(ctx context.Context, out io.Writer) int {
		program := simagent.Program{
			Stdout: out, Stderr: out, Delay: 10 * time.Millisecond, Abort: abort,
			Getenv: func(name string) string { return all[name] },
		}
		return program.Main(ctx, []string{"start", "--acquire-job", job})
	})
	t.Cleanup(a.Abort)
	return a
}

// Receiver records webhooks.
type Receiver = forgetest.Receiver

// Webhook is one received delivery.
type Webhook = forgetest.Webhook

// NewReceiver starts a webhook receiver on loopback that responds with 202.
func NewReceiver(t testing.TB) *Receiver {
	t.Helper()
	return forgetest.NewReceiver(t, nil)
}
