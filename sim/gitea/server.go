// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitea

import (
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/forge/engine"
)

// Server is one simulated server. Make it with New, serve Handler (and Control, on a
// listener of its own), and Close it.
type Server struct {
	*engine.Record

	core    *engine.Core
	opts    Options
	api     http.Handler
	control http.Handler

	// The core's Mu guards what follows.
	outbox       *engine.Outbox[delivery]
	webhook      control.WebhookTarget
	ids          ids
	repositories []*repository
	tokens       map[string]*Token
	// registration are Gitea's registration tokens by whose they are.
	registration map[string]string
	runners      map[int64]*runner
	jobs         map[int64]*job
	registered   int
	base         string // URL of the instance
}

// ids are the counters of the server, each the last id given out.
type ids struct{ runner, job, run, task int64 }

type repository struct {
	id   int64
	path string
}

func (r *repository) owner() string {
	owner, _, _ := strings.Cut(r.path, "/")
	return owner
}

// New builds a server from options and starts its background work.
func New(opts Options) (*Server, error) {
	opts.setDefaults()
	if err := opts.check(); err != nil {
		return nil, err
	}
	s := &Server{
		opts: opts, webhook: opts.Webhook, base: "http://gitea.invalid",
		core: engine.New(engine.Config{
			Clock: opts.Clock, Log: opts.Log, Faults: opts.Faults, Check: control.Faults.Check,
			Seed: opts.Seed, Platform: 0x67697465, HookTimeout: opts.HookTimeout,
		}),
		ids:    ids{runner: 40, job: 7000, run: 300, task: 9000},
		tokens: map[string]*Token{}, registration: map[string]string{}, runners: map[int64]*runner{}, jobs: map[int64]*job{},
	}
	s.Record = s.core.Record
	for i, path := range opts.Repositories {
		s.repositories = append(s.repositories, &repository{id: int64(i + 11), path: path})
	}
	for i := range s.opts.Tokens {
		s.tokens[s.opts.Tokens[i].Token] = &s.opts.Tokens[i]
	}
	s.api = s.routes()
	s.control = control.Handler(s, func(to control.WebhookTarget) error {
		s.SetWebhook(to)
		return nil
	})
	s.outbox = engine.NewOutbox(s.core, s.deliver)
	s.core.Watch(s.due)
	return s, nil
}

// Handler serves the API under /api/.
func (s *Server) Handler() http.Handler { return s.api }

// Control serves the control API. Anyone who reaches it may do anything.
func (s *Server) Control() http.Handler { return s.control }

// Close stops background work.
func (s *Server) Close() { s.core.Close() }

// SetWebhook points the hooks at a target; an empty URL stops them.
func (s *Server) SetWebhook(target control.WebhookTarget) {
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	s.webhook = target
}

// SetURL says where the instance is reached, which its links and its webhooks tell.
func (s *Server) SetURL(address string) {
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	s.base = strings.TrimRight(address, "/")
}

// Revoke makes an access token useless from now on.
func (s *Server) Revoke(token string) error {
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	if s.tokens[token] == nil {
		return errors.New("revoke token: there is no such token")
	}
	delete(s.tokens, token)
	return nil
}

// ResetRegistration replaces all registration tokens.
func (s *Server) ResetRegistration() {
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	clear(s.registration)
}

func (s *Server) now() time.Time { return s.core.Now() }

// violate records a breach. The lock is held.
func (s *Server) violate(kind string, r *http.Request, message string) {
	s.core.Violate(kind, r.Method, r.URL.Path, message)
}

// lock takes the lock and brings the state up to now.
func (s *Server) lock() {
	s.core.Mu.Lock()
	s.advance(s.now())
}

func (s *Server) repositoryBy(path string) *repository {
	at := slices.IndexFunc(s.repositories, func(r *repository) bool { return strings.EqualFold(r.path, path) })
	if at < 0 {
		return nil
	}
	return s.repositories[at]
}

// State returns a snapshot.
func (s *Server) State() control.State {
	s.lock()
	defer s.core.Mu.Unlock()
	state := s.core.Snapshot()
	state.Registered, state.MachineCalls = s.registered, machineCalls()
	state.Webhooks.Pending = s.outbox.Pending()
	for _, id := range slices.Sorted(maps.Keys(s.jobs)) {
		state.Jobs = append(state.Jobs, s.jobs[id].control())
	}
	for _, id := range slices.Sorted(maps.Keys(s.runners)) {
		r := s.runners[id]
		out := control.Runner{
			ID: r.id, Name: r.name, Scope: r.place, Labels: append([]string{}, r.labels...), Online: s.online(r),
			Busy: r.running != nil, Ephemeral: r.ephemeral,
		}
		if r.running != nil {
			out.JobID = r.running.id
		}
		state.Runners = append(state.Runners, out)
	}
	return state
}
