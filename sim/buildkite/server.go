// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package buildkite

import (
	"net/http"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/forge/engine"
)

// Server is one simulated cluster. Create it with New, serve Handler, serve Control on a separate
// listener, and call Close at the end.
type Server struct {
	*engine.Record

	core    *engine.Core
	opts    Options
	api     http.Handler
	control http.Handler
	orgUUID string

	// The core's Mu guards the following fields.
	outbox          *engine.Outbox[delivery]
	target          control.WebhookTarget
	lastJob         int64
	lastAgent       int64
	queues          []*queue
	pipelines       map[string]*pipeline // by slug
	stacks          map[string]*stack    // by key
	jobs            map[string]*job      // by UUID
	jobOrder        []*job               // oldest first
	agents          map[int64]*agent
	tokens          map[string]grant
	windows         map[string][]time.Time // requests of the last second, by stack and endpoint
	registeredCount int
}

type queue struct {
	uuid, key string
	paused    bool
}

type pipeline struct {
	uuid, slug, name string // name is ORG/SLUG
	buildCount       int64
}

type stack struct {
	uuid, key, queue string
	metadata         map[string]string
	lastSeen         time.Time
}

// grant is what a token allows. Exactly one of cluster, agent and job is set. A job acquisition
// token also has acquire and expires.
type grant struct {
	isCluster     bool
	agent         *agent // of a session token
	job           *job   // of a job token, or of a job acquisition token if acquire is set
	isAcquisition bool
	expiresAt     time.Time
}

// New creates a server and starts its goroutines.
func New(opts Options) (*Server, error) {
	opts.setDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}
	s := &Server{
		opts: opts, target: opts.Webhook, orgUUID: engine.NewUUID(),
		core: engine.New(engine.Config{
			Clock: opts.Clock, Log: opts.Log, Faults: opts.Faults, Check: control.Faults.Check,
			Seed: opts.Seed, Platform: 0x626b6974, HookTimeout: opts.HookTimeout,
		}),
		pipelines: map[string]*pipeline{}, stacks: map[string]*stack{}, jobs: map[string]*job{},
		agents: map[int64]*agent{}, tokens: map[string]grant{}, windows: map[string][]time.Time{},
	}
	for _, key := range opts.Queues {
		s.queues = append(s.queues, &queue{uuid: engine.NewUUID(), key: key})
	}
	for _, token := range opts.Tokens {
		s.tokens[token] = grant{isCluster: true}
	}
	s.Record = s.core.Record
	s.api = s.newAPIHandler()
	s.control = control.NewHandler(s, func(target control.WebhookTarget) error {
		s.SetWebhook(target)
		return nil
	})
	s.outbox = engine.NewOutbox(s.core, s.deliver)
	s.core.Schedule(s.computeDelay)
	return s, nil
}

// Handler returns the handler of the API below /v3.
func (s *Server) Handler() http.Handler { return s.api }

// Control returns the handler of the control API. It has no authentication.
func (s *Server) Control() http.Handler { return s.control }

// Close stops the goroutines.
func (s *Server) Close() { s.core.Close() }

// SetWebhook sets the target of the webhooks. An empty URL disables webhooks.
func (s *Server) SetWebhook(target control.WebhookTarget) {
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	s.target = target
}

// SetPaused pauses or resumes a queue.
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

// DeregisterStacks deregisters every stack, as a person can.
func (s *Server) DeregisterStacks() {
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	clear(s.stacks)
}

func (s *Server) now() time.Time { return s.core.Now() }

// lock locks core.Mu, which the caller unlocks, and applies the deadlines that have passed.
func (s *Server) lock() {
	s.core.Mu.Lock()
	s.advance(s.now())
}

// findQueue returns the queue with a key, or nil. The keys "" and "__default__" stand for the
// default queue.
func (s *Server) findQueue(key string) *queue {
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
