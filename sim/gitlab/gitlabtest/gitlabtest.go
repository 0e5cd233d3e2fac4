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

// Defaults that New fills into empty options.
const (
	Project = "gitlab-org/ci/gitlab-test"
	Group   = "gitlab-org"
	Token   = "glpat-simulatedaccesstoken"
)

// Server is a simulator served on loopback.
type Server struct {
	*gitlab.Server
	forgetest.Served

	URL string // without a slash at its end
}

// New starts a simulator that stops with the test. Empty options get one project Project
// and a token Token of an administrator with the scopes that runners need. Violations
// that are left at the end fail the test; use ExpectViolations for those a test provokes.
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

// Queue adds jobs and fails the test when they are refused.
func (s *Server) Queue(spec control.JobSpec) []control.Job {
	s.T.Helper()
	if spec.Repo == "" {
		spec.Repo = Project
	}
	return s.MustQueue(spec)
}

// Runner is a stand-in runner inside the test process.
type Runner = forgetest.Program

// StartRunner runs the stand-in for one job of the server, with more options.
func (s *Server) StartRunner(t testing.TB, token string, more ...string) *Runner {
	t.Helper()
	args := append([]string{
		"run-single", "--max-builds", "1", "--executor", "shell", "--url", s.URL, "--builds-dir", t.TempDir(),
	}, more...)
	return forgetest.Start(t, func(ctx context.Context, out io.Writer) int {
		program := simrunner.Program{
			Stdout: out, Stderr: out, Check: 10 * time.Millisecond, Unhealthy: 10 * time.Millisecond,
			Getenv: func(name string) string { return map[string]string{"CI_SERVER_TOKEN": token}[name] },
		}
		return program.Main(ctx, args)
	})
}

// Receiver records webhooks.
type Receiver = forgetest.Receiver

// Webhook is one delivery as received.
type Webhook = forgetest.Webhook

// NewReceiver listens for webhooks on loopback and answers 202.
func NewReceiver(t testing.TB) *Receiver {
	t.Helper()
	return forgetest.NewReceiver(t, nil)
}
