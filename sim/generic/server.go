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

// Server is one sender of jobs. Make it with New, serve Handler (and Control, on a
// listener of its own), and Close it.
type Server struct {
	*engine.Record

	core    *engine.Core
	opts    Options
	api     http.Handler
	control http.Handler

	// The core's Mu guards what follows.
	outbox *engine.Outbox[delivery]
	target control.WebhookTarget
	ids    ids
	jobs   []*job // in the order of their ids
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
		opts: opts, target: opts.Webhook, ids: ids{job: 1000, run: 100},
		core: engine.New(engine.Config{
			Clock: opts.Clock, Log: opts.Log, Faults: opts.Faults, Check: checkFaults,
			Seed: opts.Seed, Platform: 0x67656e, HookTimeout: opts.HookTimeout,
		}),
	}
	s.Record = s.core.Record
	s.api, s.control = s.routes(), control.Handler(s, s.SetWebhook)
	s.outbox = engine.NewOutbox(s.core, s.deliver)
	return s, nil
}

// Handler serves what commands call.
func (s *Server) Handler() http.Handler { return s.api }

// Control serves the control API. Anyone who reaches it may do anything.
func (s *Server) Control() http.Handler { return s.control }

// Close stops sending.
func (s *Server) Close() { s.core.Close() }

// SetURL says where commands reach Handler, for jobs that are queued from now on.
func (s *Server) SetURL(url string) {
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	s.opts.URL = url
}

// SetWebhook points all webhooks at a target, those that wait for another try as well; an
// empty URL stops them.
func (s *Server) SetWebhook(target control.WebhookTarget) error {
	if _, err := signingKey(target.Secret); err != nil {
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

// State is a snapshot.
func (s *Server) State() control.State {
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	out := s.core.Snapshot()
	out.MachineCalls = slices.Sorted(maps.Keys(s.core.Requests))
	for _, j := range s.jobs {
		out.Jobs = append(out.Jobs, j.snapshot())
	}
	out.Webhooks.Pending = s.outbox.Pending()
	return out
}

// violate records a breach by a caller. The lock is held.
func (s *Server) violate(kind string, r *http.Request, message string) {
	s.core.Violate(kind, r.Method, r.URL.Path, message)
}

func (s *Server) now() time.Time { return s.core.Now() }
