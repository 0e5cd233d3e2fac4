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

// Defaults of New for empty options.
const (
	Repo = "octo-org/octo-repo"
	Org  = "octo-org"
	PAT  = "ghp_simulatedpersonalaccesstoken0000000"
)

// sharedParts are read-only values that the servers of one test binary share. Creating them takes a
// second with the race detector.
type sharedParts struct {
	spec *github.Spec
	key  *rsa.PrivateKey
}

var loadSharedParts = sync.OnceValues(func() (sharedParts, error) { //nolint:gochecknoglobals // read-only, created once
	spec, err := github.LoadSpec()
	if err != nil {
		return sharedParts{}, fmt.Errorf("load description: %w", err)
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return sharedParts{}, fmt.Errorf("create the runners' key: %w", err)
	}
	return sharedParts{spec, key}, nil
})

// Server is a simulator that a test serves on loopback.
type Server struct {
	*github.Server
	forgetest.Served

	URL string // of the API and the runner service, without a trailing slash
}

// New starts a simulator that stops with the test. By default, the simulator has the repository
// Repo and the classic token PAT with all scopes that runners need. The test fails if a request
// violated GitHub's API. A test that causes violations on purpose calls ExpectViolations.
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
	parts, err := loadSharedParts()
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

// Queue queues jobs and fails the test if the simulator rejects them.
func (s *Server) Queue(spec control.JobSpec) []control.Job {
	s.T.Helper()
	if spec.Repo == "" {
		spec.Repo = Repo
	}
	return s.MustQueue(spec)
}

// Runner is a simulated runner inside the test process.
type Runner = forgetest.Program

// StartRunner runs the simulated runner with arguments such as "run", "--jitconfig", BLOB in the
// folder dir.
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

// Webhook is one received delivery.
type Webhook = forgetest.Webhook

// NewReceiver starts a webhook receiver on loopback that responds with 202.
func NewReceiver(t testing.TB) *Receiver {
	t.Helper()
	return forgetest.NewReceiver(t, nil)
}
