// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlabtest

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/forge/forgetest"
	"github.com/hyperfleet/hyperfleet/sim/gitlab"
	"github.com/hyperfleet/hyperfleet/sim/gitlab/simrunner"
)

// Defaults of New for empty options.
const (
	Project = "gitlab-org/ci/gitlab-test"
	Group   = "gitlab-org"
	Token   = "glpat-simulatedaccesstoken"
)

// Server is a simulator that a test serves on loopback.
type Server struct {
	*gitlab.Server
	forgetest.Served

	URL string // without a trailing slash
}

// New starts a simulator that stops with the test. By default, the simulator has the project
// Project, and the token Token of an administrator with the scopes that runners need. The test
// fails if a request violated GitLab's API. A test that causes violations on purpose calls
// ExpectViolations.
func New(t testing.TB, opts gitlab.Options) *Server {
	t.Helper()
	if len(opts.Projects) == 0 {
		opts.Projects = []gitlab.Project{{Path: Project}}
	}
	if len(opts.Tokens) == 0 {
		opts.Tokens = []gitlab.Token{{Token: Token, Admin: true, Scopes: []string{"read_api", "create_runner", "manage_runner"}}}
	}
	sim, err := gitlab.New(opts)
	if err != nil {
		t.Fatalf("start simulated GitLab: %v", err)
	}
	s := &Server{Server: sim}
	s.Served, s.URL = forgetest.Serve(t, "GitLab", sim)
	sim.SetURL(s.URL)
	return s
}

// Queue queues jobs and fails the test if the simulator rejects them.
func (s *Server) Queue(spec control.JobSpec) []control.Job {
	s.T.Helper()
	if spec.Repo == "" {
		spec.Repo = Project
	}
	return s.MustQueue(spec)
}

// Runner is a simulated runner inside the test process.
type Runner = forgetest.Program

// StartRunner runs the simulated runner for one job of the server. more are additional options.
func (s *Server) StartRunner(t testing.TB, token string, options ...string) *Runner {
	t.Helper()
	args := append([]string{
		"run-single", "--max-builds", "1", "--executor", "shell", "--url", s.URL, "--builds-dir", t.TempDir(),
	}, options...)
	return forgetest.Start(t, func(ctx context.Context, out io.Writer) int {
		program := simrunner.Program{
			Stdout: out, Stderr: out, CheckInterval: 10 * time.Millisecond, UnhealthyDelay: 10 * time.Millisecond,
			Getenv: func(name string) string { return map[string]string{"CI_SERVER_TOKEN": token}[name] },
		}
		return program.Main(ctx, args)
	})
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
