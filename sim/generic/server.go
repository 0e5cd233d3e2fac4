// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package generic

import (
	"context"
	"maps"
	mathrand "math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
)

// Server is one sender of jobs. Make it with New, serve Handler (and Control, on a
// listener of its own), and Close it.
type Server struct {
	opts    Options
	api     http.Handler
	control http.Handler
	client  *http.Client
	ctx     context.Context //nolint:containedctx // lifetime of the server's goroutine and its webhooks
	stop    context.CancelFunc
	wg      sync.WaitGroup
	mail    chan struct{} // wakes the webhook sender; capacity 1

	mu         sync.Mutex
	rng        *mathrand.Rand
	faults     control.Faults
	target     control.WebhookTarget
	ids        ids
	jobs       []*job // in the order of their ids
	outbox     []*delivery
	sending    int
	flying     map[int64]bool // jobs that a webhook is under way for
	counts     control.WebhookCounts
	requests   map[string]int
	violations []control.Violation
}

// ids are counters, each the last id given out.
type ids struct{ job, run, message int64 }

// New builds a server and starts to send.
func New(opts Options) (*Server, error) {
	opts.setDefaults()
	if err := opts.check(); err != nil {
		return nil, err
	}
	s := &Server{
		opts: opts, faults: opts.Faults, target: opts.Webhook, mail: make(chan struct{}, 1),
		client: &http.Client{Timeout: opts.HookTimeout, Transport: &http.Transport{Proxy: nil}},
		rng:    mathrand.New(mathrand.NewPCG(opts.Seed, 0x67656e)), // #nosec G404 -- faults must be repeatable
		ids:    ids{job: 1000, run: 100},
		flying: map[int64]bool{}, requests: map[string]int{},
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.api, s.control = s.routes(), control.Handler(s, s.SetWebhook)
	s.wg.Go(s.sendWebhooks)
	return s, nil
}

// Handler serves what commands call.
func (s *Server) Handler() http.Handler { return s.api }

// Control serves the control API. Anyone who reaches it may do anything.
func (s *Server) Control() http.Handler { return s.control }

// Close stops sending.
func (s *Server) Close() {
	s.stop()
	s.wg.Wait()
	s.client.CloseIdleConnections()
}

// SetURL says where commands reach Handler, for jobs that are queued from now on.
func (s *Server) SetURL(url string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opts.URL = url
}

// SetFaults replaces the faults.
func (s *Server) SetFaults(f control.Faults) error {
	if err := checkFaults(f); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = f
	return nil
}

// SetWebhook points all webhooks at a target, those that wait for another try as well; an
// empty URL stops them.
func (s *Server) SetWebhook(target control.WebhookTarget) error {
	if _, err := signingKey(target.Secret); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.target = target
	if target.URL == "" {
		s.outbox = nil
	}
	poke(s.mail)
	return nil
}

// State is a snapshot.
func (s *Server) State() control.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := control.State{
		Now: s.now(), Jobs: make([]control.Job, 0, len(s.jobs)), Runners: []control.Runner{},
		Webhooks: s.counts, Requests: maps.Clone(s.requests), MachineCalls: slices.Sorted(maps.Keys(s.requests)),
	}
	for _, j := range s.jobs {
		out.Jobs = append(out.Jobs, j.snapshot())
	}
	out.Webhooks.Pending = len(s.outbox) + s.sending
	return out
}

// Violations returns the breaches seen so far.
func (s *Server) Violations() []control.Violation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.violations)
}

// TakeViolations returns the breaches seen so far and forgets them.
func (s *Server) TakeViolations() []control.Violation {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.violations
	s.violations = nil
	return taken
}

// violate records a breach by a caller. The lock is held.
func (s *Server) violate(kind string, r *http.Request, message string) {
	s.opts.Log.Error("contract violation", "kind", kind, "method", r.Method, "path", r.URL.Path, "error", message)
	s.violations = append(s.violations, control.Violation{
		Time: s.now(), Kind: kind, Method: r.Method, Path: r.URL.Path, Message: message,
	})
}

func (s *Server) now() time.Time { return s.opts.Clock.Now() }

// chance draws from the seeded source. The lock is held.
func (s *Server) chance(p float64) bool { return p > 0 && s.rng.Float64() < p }

func poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
