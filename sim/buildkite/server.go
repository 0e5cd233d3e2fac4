// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package buildkite

import (
	"net/http"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/forge/engine"
)

// Server is one simulated cluster. Make it with New, serve Handler (and Control, on a
// listener of its own), and Close it.
type Server struct {
	*engine.Record

	core    *engine.Core
	opts    Options
	api     http.Handler
	control http.Handler
	orgUUID string

	// The core's Mu guards what follows.
	outbox     *engine.Outbox[delivery]
	target     control.WebhookTarget
	lastJob    int64
	lastAgent  int64
	queues     []*queue
	pipelines  map[string]*pipeline // by slug
	stacks     map[string]*stack    // by key
	jobs       map[string]*job      // by UUID
	order      []*job               // oldest first
	agents     map[int64]*agent
	tokens     map[string]grant
	windows    map[string][]time.Time // requests of the last second, by stack and endpoint
	registered int
}

type queue struct {
	uuid, key string
	paused    bool
}

type pipeline struct {
	uuid, slug, name string // name is ORG/SLUG
	builds           int64
}

type stack struct {
	uuid, key, queue string
	metadata         map[string]string
	seen             time.Time
}

// grant is what a token allows. One of its fields is set, but for job acquisition tokens.
type grant struct {
	cluster bool
	agent   *agent // session
	job     *job   // of a job token, or with acquire of a job acquisition token
	acquire bool
	expires time.Time
}

// New builds a server from options and starts its background work.
func New(opts Options) (*Server, error) {
	opts.setDefaults()
	if err := opts.check(); err != nil {
		return nil, err
	}
	s := &Server{
		opts: opts, target: opts.Webhook, orgUUID: engine.UUID(),
		core: engine.New(engine.Config{
			Clock: opts.Clock, Log: opts.Log, Faults: opts.Faults, Check: control.Faults.Check,
			Seed: opts.Seed, Platform: 0x626b6974, HookTimeout: opts.HookTimeout,
		}),
		pipelines: map[string]*pipeline{}, stacks: map[string]*stack{}, jobs: map[string]*job{},
		agents: map[int64]*agent{}, tokens: map[string]grant{}, windows: map[string][]time.Time{},
	}
	for _, key := range opts.Queues {
		s.queues = append(s.queues, &queue{uuid: engine.UUID(), key: key})
	}
	for _, token := range opts.Tokens {
		s.tokens[token] = grant{cluster: true}
	}
	s.Record = s.core.Record
	s.api = s.routes()
	s.control = control.Handler(s, func(to control.WebhookTarget) error {
		s.SetWebhook(to)
		return nil
	})
	s.outbox = engine.NewOutbox(s.core, s.deliver)
	s.core.Watch(s.due)
	return s, nil
}

// Handler serves the API below /v3.
func (s *Server) Handler() http.Handler { return s.api }

// Control serves the control API. Anyone who reaches it may do anything.
func (s *Server) Control() http.Handler { return s.control }

// Close stops background work.
func (s *Server) Close() { s.core.Close() }

// SetWebhook points the webhooks at a target; an empty URL stops them.
func (s *Server) SetWebhook(target control.WebhookTarget) {
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	s.target = target
}

// SetPaused pauses a queue, or resumes it.
func (s *Server) SetPaused(key string, paused bool) {
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	for _, q := range s.queues {
		if q.key == key {
			q.paused = paused
		}
	}
}

// RevokeToken makes an agent token of the cluster invalid.
func (s *Server) RevokeToken(token string) {
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	delete(s.tokens, token)
}

// ForgetStacks deregisters every stack, as a person could.
func (s *Server) ForgetStacks() {
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	clear(s.stacks)
}

func (s *Server) now() time.Time { return s.core.Now() }

// lock takes the lock and brings the state up to now.
func (s *Server) lock() {
	s.core.Mu.Lock()
	s.advance(s.now())
}

// queueOf gives the queue of that key; the words for the default queue are known too.
func (s *Server) queueOf(key string) *queue {
	if key == "" || key == "__default__" {
		return s.queues[0]
	}
	for _, q := range s.queues {
		if q.key == key {
			return q
		}
	}
	return nil
}
