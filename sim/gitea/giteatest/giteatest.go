// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package giteatest

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/forge/forgetest"
	"github.com/hyperfleet/hyperfleet/sim/gitea"
	"github.com/hyperfleet/hyperfleet/sim/gitea/simrunner"
)

// Defaults of New for empty options.
const (
	Repository   = "acme/shop"
	Organization = "acme"
	Token        = "0123456789abcdef0123456789abcdef01234567"
)

// Server is a simulator that a test serves on loopback.
type Server struct {
	*gitea.Server
	forgetest.Served

	URL string // without a trailing slash
}

// New starts a simulator that stops with the test. By default, the simulator has the repository
// Repository, and the token Token with the scopes that runners need. The test fails if a request
// violated Gitea's API. A test that causes violations on purpose calls ExpectViolations.
func New(t testing.TB, opts gitea.Options) *Server {
	t.Helper()
	if len(opts.Repositories) == 0 {
		opts.Repositories = []string{Repository}
	}
	if len(opts.Tokens) == 0 {
		opts.Tokens = []gitea.Token{{Token: Token, Scopes: []string{"write:repository", "write:organization", "write:admin"}}}
	}
	sim, err := gitea.New(opts)
	if err != nil {
		t.Fatalf("start simulated Gitea: %v", err)
	}
	s := &Server{Server: sim}
	s.Served, s.URL = forgetest.Serve(t, "Gitea", sim)
	sim.SetURL(s.URL)
	return s
}

// Queue queues jobs and fails the test if the simulator rejects them.
func (s *Server) Queue(spec control.JobSpec) []control.Job {
	s.T.Helper()
	if spec.Repo == "" {
		spec.Repo = Repository
	}
	return s.MustQueue(spec)
}

// StartRunner runs the simulated forgejo-runner for the job of a handle, or for any job if handle
// is empty.
func (s *Server) StartRunner(t testing.TB, uuid, token, handle string, labels ...string) *forgetest.Program {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"one-job", "--url", s.URL, "--uuid", uuid, "--token-url", "file:" + file, "--handle", handle, "--wait"}
	for _, label := range labels {
		args = append(args, "--label", label+":host")
	}
	return forgetest.Start(t, func(ctx context.Context, out io.Writer) int {
		program := simrunner.Program{Stdout: out, Stderr: out, Dir: dir, FetchInterval: 10 * time.Millisecond}
		return program.Main(ctx, args)
	})
}
