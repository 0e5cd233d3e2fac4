// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package githubtest

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/forge/forgetest"
	"github.com/hyperfleet/hyperfleet/sim/github"
	"github.com/hyperfleet/hyperfleet/sim/github/simrunner"
)

// Defaults that New fills into empty options.
const (
	Repo = "octo-org/octo-repo"
	Org  = "octo-org"
	PAT  = "ghp_simulatedpersonalaccesstoken0000000"
)

// costly is what servers of one test binary share: it is read-only, and making
// it anew takes a second under the race detector.
type costly struct {
	spec *github.Spec
	key  *rsa.PrivateKey
}

var shared = sync.OnceValues(func() (costly, error) { //nolint:gochecknoglobals // read-only, made once
	spec, err := github.LoadSpec()
	if err != nil {
		return costly{}, fmt.Errorf("load the description: %w", err)
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return costly{}, fmt.Errorf("make the runners' key: %w", err)
	}
	return costly{spec, key}, nil
})

// Server is a simulator served on loopback.
type Server struct {
	*github.Server
	forgetest.Served

	URL string // API and runner service, without a trailing slash
}

// New starts a simulator that stops with the test. Empty options get one
// repository Repo and a classic token PAT with all the scopes runners need.
// Violations that are left at the end fail the test; use ExpectViolations for
// those a test provokes.
func New(t testing.TB, opts github.Options) *Server {
	t.Helper()
	if len(opts.Repos) == 0 {
		opts.Repos = []github.Repo{{FullName: Repo, Private: true}}
	}
	if len(opts.PATs) == 0 {
		opts.PATs = []github.PAT{{
			Token: PAT, Scopes: []string{"repo", "admin:org", "admin:org_hook", "manage_runners:enterprise"},
		}}
	}
	parts, err := shared()
	if err != nil {
		t.Fatalf("start simulated GitHub: %v", err)
	}
	if opts.Spec == nil {
		opts.Spec = parts.spec
	}
	if opts.RunnerKey == nil {
		opts.RunnerKey = parts.key
	}
	sim, err := github.New(opts)
	if err != nil {
		t.Fatalf("start simulated GitHub: %v", err)
	}
	s := &Server{Server: sim}
	s.Served, s.URL = forgetest.Serve(t, "GitHub", sim)
	return s
}

// Queue adds jobs and fails the test when they are refused.
func (s *Server) Queue(spec control.JobSpec) []control.Job {
	s.T.Helper()
	if spec.Repo == "" {
		spec.Repo = Repo
	}
	return s.MustQueue(spec)
}

// Runner is a stand-in runner inside the test process.
type Runner = forgetest.Program

// StartRunner runs the stand-in runner with arguments such as "run",
// "--jitconfig", BLOB in a folder of its own.
func StartRunner(t testing.TB, dir string, args ...string) *Runner {
	t.Helper()
	return forgetest.Start(t, func(ctx context.Context, out io.Writer) int {
		program := simrunner.Program{
			Root: dir, Stdout: out, Stderr: out, Delay: 10 * time.Millisecond,
			Getenv: func(string) string { return "" },
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
