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

// Server is one simulated GitLab. Create it with New, serve Handler, serve Control on a separate
// listener, and call Close at the end.
type Server struct {
	*engine.Record

	core    *engine.Core
	opts    Options
	api     http.Handler
	control http.Handler

	// The core's Mu guards the following fields.
	outbox          *engine.Outbox[delivery]
	webhook         control.WebhookTarget
	ids             ids
	projects        map[int64]*project
	moved           map[string]*project // by former path in lower case
	groups          map[int64]*group
	tokens          map[string]*Token
	runners         map[int64]*runner
	jobs            map[int64]*job
	queue           []*job // status pending, oldest first
	health          hookHealth
	registeredCount int
	// version counts the changes that can affect the response to a runner's request for a job.
	// changed is closed when version increases.
	version int64
	changed chan struct{}
	// baseURL is the URL of the instance: the URL of SetURL, or the URL of the last call.
	baseURL     string
	hasFixedURL bool
}

// ids are the last allocated ids.
type ids struct{ runner, job, pipeline, project, group int64 }

type project struct {
	id             int64
	path           string // full
	hasNoPipelines bool   // without pipelines
	// activeAt is the time of the last activity in the project.
	activeAt time.Time
}

type group struct {
	id   int64
	path string // full
}

// New creates a server and starts its goroutines.
func New(opts Options) (*Server, error) {
	opts.setDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}
	s := &Server{
		opts: opts, webhook: opts.Webhook, baseURL: "http://gitlab.invalid",
		core: engine.New(engine.Config{
			Clock: opts.Clock, Log: opts.Log, Faults: opts.Faults, Check: control.Faults.Check,
			Seed: opts.Seed, Platform: 0x6c616221, HookTimeout: opts.HookTimeout,
		}),
		ids:      ids{runner: 100, job: 1976, pipeline: 2365, project: 379, group: 34},
		projects: map[int64]*project{}, moved: map[string]*project{}, groups: map[int64]*group{}, tokens: map[string]*Token{},
		changed: make(chan struct{}),
		runners: map[int64]*runner{}, jobs: map[int64]*job{},
	}
	s.Record = s.core.Record
	s.populate()
	s.api = s.newAPIHandler()
	s.control = control.NewHandler(s, func(target control.WebhookTarget) error {
		s.SetWebhook(target)
		return nil
	})
	s.outbox = engine.NewOutbox(s.core, s.deliver)
	s.core.Schedule(s.computeDelay)
	return s, nil
}

func (s *Server) populate() {
	for _, p := range s.opts.Projects {
		s.ids.project++
		s.projects[s.ids.project] = &project{id: s.ids.project, path: p.Path, hasNoPipelines: p.NoPipelines, activeAt: s.now()}
		parts := strings.Split(p.Path, "/")
		for i := 1; i < len(parts); i++ {
			path := strings.Join(parts[:i], "/")
			if s.findGroup(path) == nil {
				s.ids.group++
				s.groups[s.ids.group] = &group{id: s.ids.group, path: path}
			}
		}
	}
	for i := range s.opts.Tokens {
		s.tokens[s.opts.Tokens[i].Token] = &s.opts.Tokens[i]
	}
}

// Handler returns the handler of the API under /api/v4/.
func (s *Server) Handler() http.Handler { return s.api }

// Control returns the handler of the control API. It has no authentication.
func (s *Server) Control() http.Handler { return s.control }

// Close stops the goroutines and ends the open polls.
func (s *Server) Close() { s.core.Close() }

// addViolation records a violation. The lock is held.
func (s *Server) addViolation(kind, method, path string, err error) {
	s.core.AddViolation(kind, method, path, err.Error())
}

// SetWebhook sets the target of the hooks. An empty URL disables webhooks.
func (s *Server) SetWebhook(target control.WebhookTarget) {
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	s.webhook, s.health = target, hookHealth{}
}

// SetURL sets the URL of the instance in links and webhooks. If it is not set, links and webhooks
// have the URL of the last call.
func (s *Server) SetURL(address string) {
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	s.baseURL, s.hasFixedURL = strings.TrimRight(address, "/"), true
}

// RevokeToken makes a token invalid.
func (s *Server) RevokeToken(token string) error {
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	t := s.tokens[token]
	if t == nil {
		return errors.New("revoke token: there is no such token")
	}
	t.Revoked = true
	return nil
}

func (s *Server) now() time.Time { return s.core.Now() }

// wakePolls ends the open requests of runners for a job. The lock is held.
func (s *Server) wakePolls() {
	s.version++
	close(s.changed)
	s.changed = make(chan struct{})
}

// lock locks core.Mu, which the caller unlocks, and applies the deadlines that have passed.
func (s *Server) lock() {
	s.core.Mu.Lock()
	s.advance(s.now())
}

// newToken returns a new token with a prefix, in the format of GitLab.
func newToken(prefix string) string {
	raw := make([]byte, 15)
	_, _ = rand.Read(raw) // never fails
	return prefix + base64.RawURLEncoding.EncodeToString(raw)
}

// formatTime formats a time as GitLab's API does. It returns nil for the zero time.
func formatTime(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z")
}
