// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package generic

import (
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/forge/engine"
)

// Server is one sender of jobs. Create it with New, serve Handler, serve Control on a separate
// listener, and call Close at the end.
type Server struct {
	*engine.Record

	core    *engine.Core
	opts    Options
	api     http.Handler
	control http.Handler

	// The core's Mu guards the following fields.
	outbox *engine.Outbox[delivery]
	target control.WebhookTarget
	ids    ids
	jobs   []*job // sorted by id
}

// ids are the last allocated ids.
type ids struct{ job, run, message int64 }

// New creates a server and starts to send webhooks.
func New(opts Options) (*Server, error) {
	opts.setDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}
	s := &Server{
		opts: opts, target: opts.Webhook, ids: ids{job: 1000, run: 100},
		core: engine.New(engine.Config{
			Clock: opts.Clock, Log: opts.Log, Faults: opts.Faults, Check: checkFaults,
			Seed: opts.Seed, Platform: 0x67656e, HookTimeout: opts.HookTimeout,
		}),
	}
	s.Record = s.core.Record
	s.api, s.control = s.newHandler(), control.NewHandler(s, s.SetWebhook)
	s.outbox = engine.NewOutbox(s.core, s.deliver)
	return s, nil
}

// Handler returns the handler of the calls of commands.
func (s *Server) Handler() http.Handler { return s.api }

// Control returns the handler of the control API. It has no authentication.
func (s *Server) Control() http.Handler { return s.control }

// Close stops the goroutines.
func (s *Server) Close() { s.core.Close() }

// SetURL sets the URL at which commands reach Handler. It applies to jobs that are queued later.
func (s *Server) SetURL(url string) {
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	s.opts.URL = url
}

// SetWebhook sets the target of all webhooks, including those that wait for a retry. An empty URL
// disables webhooks and deletes the queued ones. SetWebhook returns an error if the secret is
// invalid.
func (s *Server) SetWebhook(target control.WebhookTarget) error {
	if _, err := parseSigningKey(target.Secret); err != nil {
		return err
	}
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	s.target = target
	if target.URL == "" {
		s.outbox.Clear()
	}
	return nil
}

// State returns a snapshot of the simulator.
func (s *Server) State() control.State {
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	out := s.core.Snapshot()
	out.MachineCalls = slices.Sorted(maps.Keys(s.core.Requests))
	for _, j := range s.jobs {
		out.Jobs = append(out.Jobs, j.snapshot())
	}
	out.Webhooks.Pending = s.outbox.CountPending()
	return out
}

// addViolation records a violation by a caller. The lock is held.
func (s *Server) addViolation(kind string, r *http.Request, message string) {
	s.core.AddViolation(kind, r.Method, r.URL.Path, message)
}

func (s *Server) now() time.Time { return s.core.Now() }
