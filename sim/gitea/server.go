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

// Server is one simulated server. Create it with New, serve Handler, serve Control on a separate
// listener, and call Close at the end.
type Server struct {
	*engine.Record

	core    *engine.Core
	opts    Options
	api     http.Handler
	control http.Handler

	// The core's Mu guards the following fields.
	outbox       *engine.Outbox[delivery]
	webhook      control.WebhookTarget
	ids          ids
	repositories []*repository
	moved        map[string]*repository // by former path in lower case
	tokens       map[string]*Token
	// registrationTokens are Gitea's registration tokens by scope.
	registrationTokens map[string]string
	runners            map[int64]*runner
	jobs               map[int64]*job
	registeredCount    int
	baseURL            string // URL of the instance
}

// ids are the last allocated ids.
type ids struct{ runner, job, run, task int64 }

type repository struct {
	id   int64
	path string
}

func (r *repository) owner() string {
	owner, _, _ := strings.Cut(r.path, "/")
	return owner
}

// New creates a server and starts its goroutines.
func New(opts Options) (*Server, error) {
	opts.setDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}
	s := &Server{
		opts: opts, webhook: opts.Webhook, baseURL: "http://gitea.invalid",
		core: engine.New(engine.Config{
			Clock: opts.Clock, Log: opts.Log, Faults: opts.Faults, Check: control.Faults.Check,
			Seed: opts.Seed, Platform: 0x67697465, HookTimeout: opts.HookTimeout,
		}),
		ids:    ids{runner: 40, job: 7000, run: 300, task: 9000},
		moved:  map[string]*repository{},
		tokens: map[string]*Token{}, registrationTokens: map[string]string{}, runners: map[int64]*runner{}, jobs: map[int64]*job{},
	}
	s.Record = s.core.Record
	for i, path := range opts.Repositories {
		s.repositories = append(s.repositories, &repository{id: int64(i + 11), path: path})
	}
	for i := range s.opts.Tokens {
		s.tokens[s.opts.Tokens[i].Token] = &s.opts.Tokens[i]
	}
	s.api = s.newAPIHandler()
	s.control = control.NewHandler(s, func(target control.WebhookTarget) error {
		s.SetWebhook(target)
		return nil
	})
	s.outbox = engine.NewOutbox(s.core, s.deliver)
	s.core.Schedule(s.computeDelay)
	return s, nil
}

// Handler returns the handler of the API under /api/.
func (s *Server) Handler() http.Handler { return s.api }

// Control returns the handler of the control API. It has no authentication.
func (s *Server) Control() http.Handler { return s.control }

// Close stops the goroutines.
func (s *Server) Close() { s.core.Close() }

// SetWebhook sets the target of the hooks. An empty URL disables webhooks.
func (s *Server) SetWebhook(target control.WebhookTarget) {
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	s.webhook = target
}

// SetURL sets the URL of the instance in links and webhooks.
func (s *Server) SetURL(address string) {
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	s.baseURL = strings.TrimRight(address, "/")
}

// RevokeToken makes an access token invalid.
func (s *Server) RevokeToken(token string) error {
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	if s.tokens[token] == nil {
		return errors.New("revoke token: there is no such token")
	}
	delete(s.tokens, token)
	return nil
}

// ResetRegistrationTokens deletes all registration tokens, so that the next call for a token
// creates a new one.
func (s *Server) ResetRegistrationTokens() {
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	clear(s.registrationTokens)
}

func (s *Server) now() time.Time { return s.core.Now() }

// addViolation records a violation. The lock is held.
func (s *Server) addViolation(kind string, r *http.Request, message string) {
	s.core.AddViolation(kind, r.Method, r.URL.Path, message)
}

// lock locks core.Mu, which the caller unlocks, and applies the deadlines that have passed.
func (s *Server) lock() {
	s.core.Mu.Lock()
	s.advance(s.now())
}

func (s *Server) findRepository(path string) *repository {
	index := slices.IndexFunc(s.repositories, func(r *repository) bool { return strings.EqualFold(r.path, path) })
	if index < 0 {
		return nil
	}
	return s.repositories[index]
}

// State returns a snapshot of the simulator.
func (s *Server) State() control.State {
	s.lock()
	defer s.core.Mu.Unlock()
	state := s.core.Snapshot()
	state.Registered, state.MachineCalls = s.registeredCount, machineCalls()
	state.Webhooks.Pending = s.outbox.CountPending()
	for _, id := range slices.Sorted(maps.Keys(s.jobs)) {
		state.Jobs = append(state.Jobs, s.jobs[id].toControl())
	}
	for _, id := range slices.Sorted(maps.Keys(s.runners)) {
		r := s.runners[id]
		out := control.Runner{
			ID: r.id, Name: r.name, Scope: r.scope, Labels: append([]string{}, r.labels...), Online: s.isOnline(r),
			Busy: r.job != nil, Ephemeral: r.ephemeral,
		}
		if r.job != nil {
			out.JobID = r.job.id
		}
		state.Runners = append(state.Runners, out)
	}
	return state
}
