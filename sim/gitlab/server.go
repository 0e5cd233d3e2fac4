// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/forge/engine"
)

// Server is one simulated GitLab. Make it with New, serve Handler (and Control, on a
// listener of its own), and Close it.
type Server struct {
	*engine.Record

	core    *engine.Core
	opts    Options
	api     http.Handler
	control http.Handler

	// The core's Mu guards what follows.
	outbox     *engine.Outbox[delivery]
	webhook    control.WebhookTarget
	ids        ids
	projects   map[int64]*project
	groups     map[int64]*group
	tokens     map[string]*Token
	runners    map[int64]*runner
	jobs       map[int64]*job
	queue      []*job // status pending, oldest first
	health     hookHealth
	registered int
	// news counts what could change the answer to a runner's question for a job; changed is
	// closed when it moves.
	news    int64
	changed chan struct{}
	// base is the URL of the instance, as SetURL gave it or as the last caller used it.
	base  string
	named bool
}

// ids are the counters of the server, each the last id given out.
type ids struct{ runner, job, pipeline, project, group int64 }

type project struct {
	id    int64
	path  string // full
	plain bool   // without pipelines
	// active is when something happened in it last.
	active time.Time
}

type group struct {
	id   int64
	path string // full
}

// New builds a server from options and starts its background work.
func New(opts Options) (*Server, error) {
	opts.setDefaults()
	if err := opts.check(); err != nil {
		return nil, err
	}
	s := &Server{
		opts: opts, webhook: opts.Webhook, base: "http://gitlab.invalid",
		core: engine.New(engine.Config{
			Clock: opts.Clock, Log: opts.Log, Faults: opts.Faults, Check: control.Faults.Check,
			Seed: opts.Seed, Platform: 0x6c616221, HookTimeout: opts.HookTimeout,
		}),
		ids:      ids{runner: 100, job: 1976, pipeline: 2365, project: 379, group: 34},
		projects: map[int64]*project{}, groups: map[int64]*group{}, tokens: map[string]*Token{},
		changed: make(chan struct{}),
		runners: map[int64]*runner{}, jobs: map[int64]*job{},
	}
	s.Record = s.core.Record
	s.populate()
	s.api = s.routes()
	s.control = control.Handler(s, func(to control.WebhookTarget) error {
		s.SetWebhook(to)
		return nil
	})
	s.outbox = engine.NewOutbox(s.core, s.deliver)
	s.core.Watch(s.due)
	return s, nil
}

func (s *Server) populate() {
	for _, p := range s.opts.Projects {
		s.ids.project++
		s.projects[s.ids.project] = &project{id: s.ids.project, path: p.Path, plain: p.NoPipelines, active: s.now()}
		parts := strings.Split(p.Path, "/")
		for i := 1; i < len(parts); i++ {
			path := strings.Join(parts[:i], "/")
			if s.groupBy(path) == nil {
				s.ids.group++
				s.groups[s.ids.group] = &group{id: s.ids.group, path: path}
			}
		}
	}
	for i := range s.opts.Tokens {
		s.tokens[s.opts.Tokens[i].Token] = &s.opts.Tokens[i]
	}
}

// Handler serves the API under /api/v4/.
func (s *Server) Handler() http.Handler { return s.api }

// Control serves the control API. Anyone who reaches it may do anything.
func (s *Server) Control() http.Handler { return s.control }

// Close stops background work.
func (s *Server) Close() { s.core.Close() }

// violate records a breach. The lock is held.
func (s *Server) violate(kind, method, path string, err error) {
	s.core.Violate(kind, method, path, err.Error())
}

// SetWebhook points the hooks at a target; an empty URL stops them.
func (s *Server) SetWebhook(target control.WebhookTarget) {
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	s.webhook, s.health = target, hookHealth{}
}

// SetURL says where the instance is reached, which its links and its webhooks tell. Before
// it is set they tell what the last caller used.
func (s *Server) SetURL(address string) {
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	s.base, s.named = strings.TrimRight(address, "/"), true
}

// Revoke makes a token useless from now on.
func (s *Server) Revoke(token string) error {
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	known := s.tokens[token]
	if known == nil {
		return errors.New("revoke token: there is no such token")
	}
	known.Revoked = true
	return nil
}

func (s *Server) now() time.Time { return s.core.Now() }

// tick wakes the runners whose questions are held. The lock is held.
func (s *Server) tick() {
	s.news++
	close(s.changed)
	s.changed = make(chan struct{})
}

// lock takes the lock and brings the state up to now.
func (s *Server) lock() {
	s.core.Mu.Lock()
	s.advance(s.now())
}

// secret makes a token of that prefix, in the form that GitLab's have.
func secret(prefix string) string {
	raw := make([]byte, 15)
	_, _ = rand.Read(raw) // never fails
	return prefix + base64.RawURLEncoding.EncodeToString(raw)
}

// stamp writes a time as GitLab's API does; nil when it is zero.
func stamp(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z")
}
