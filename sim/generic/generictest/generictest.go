// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package generictest

import (
	"testing"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/forge/forgetest"
	"github.com/hyperfleet/hyperfleet/sim/generic"
)

// Defaults of New for empty options.
const (
	Source = "demo"
	// Secret is the secret of webhooks.
	Secret = "whsec_c2VjcmV0IG9mIHRoZSBzaW11bGF0ZWQgc2VuZGVy"
)

// Server is a sender that a test serves on loopback.
type Server struct {
	*generic.Server
	forgetest.Served

	URL string // for the commands of jobs, without a trailing slash
}

// New starts a sender that stops with the test. The test fails if a request violated the sender's
// API. A test that causes violations on purpose calls ExpectViolations.
func New(t testing.TB, opts generic.Options) *Server {
	t.Helper()
	if opts.Webhook.Secret == "" {
		opts.Webhook.Secret = Secret
	}
	sim, err := generic.New(opts)
	if err != nil {
		t.Fatalf("start simulated sender: %v", err)
	}
	s := &Server{Server: sim}
	s.Served, s.URL = forgetest.Serve(t, "the sender's", sim)
	sim.SetURL(s.URL)
	return s
}

// Queue queues jobs and fails the test if the simulator rejects them.
func (s *Server) Queue(spec control.JobSpec) []control.Job {
	s.T.Helper()
	return s.MustQueue(spec)
}

// Receiver records webhooks.
type Receiver = forgetest.Receiver

// Webhook is one received delivery.
type Webhook = forgetest.Webhook

// NewReceiver starts a webhook receiver on loopback. respond returns the status code for the n-th
// webhook, counted from 1. If respond is nil, the receiver responds with 202.
func NewReceiver(t testing.TB, respond func(n int, hook Webhook) int) *Receiver {
	t.Helper()
	return forgetest.NewReceiver(t, respond)
}
