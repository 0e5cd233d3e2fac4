// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package generictest

import (
	"testing"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/forge/forgetest"
	"github.com/hyperfleet/hyperfleet/sim/generic"
)

// Defaults that New fills into empty options.
const (
	Source = "demo"
	// Secret of webhooks.
	Secret = "whsec_c2VjcmV0IG9mIHRoZSBzaW11bGF0ZWQgc2VuZGVy"
)

// Server is a sender served on loopback.
type Server struct {
	*generic.Server
	forgetest.Served

	URL string // of the jobs' commands, without a trailing slash
}

// New starts a sender that stops with the test. Violations that are left at the end fail
// the test; use ExpectViolations for those a test provokes.
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

// Queue adds jobs and fails the test when they are refused.
func (s *Server) Queue(spec control.JobSpec) []control.Job {
	s.T.Helper()
	return s.MustQueue(spec)
}

// Receiver records webhooks.
type Receiver = forgetest.Receiver

// Webhook is one delivery as received.
type Webhook = forgetest.Webhook

// NewReceiver listens for webhooks on loopback. answer gives the status code for the
// n-th webhook, counted from 1; nil answers 202 to all.
func NewReceiver(t testing.TB, answer func(n int, hook Webhook) int) *Receiver {
	t.Helper()
	return forgetest.NewReceiver(t, answer)
}
