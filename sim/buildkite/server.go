// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package buildkite

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	mathrand "math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
)

// Server is one simulated cluster. Make it with New, serve Handler (and Control, on a
// listener of its own), and Close it.
type Server struct {
	opts    Options
	api     http.Handler
	control http.Handler
	ctx     context.Context //nolint:containedctx // lifetime of the server's goroutines
	stop    context.CancelFunc
	wg      sync.WaitGroup
	kick    chan struct{} // wakes the deadline loop; capacity 1
	mail    chan struct{} // wakes the webhook sender; capacity 1
	client  *http.Client
	orgUUID string

	mu         sync.Mutex
	rng        *mathrand.Rand
	faults     control.Faults
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
	outbox     []*delivery
	sending    int
	flying     map[string]bool // jobs that a webhook is under way for
	counts     control.WebhookCounts
	requests   map[string]int
	windows    map[string][]time.Time // requests of the last second, by stack and endpoint
	registered int
	violations []control.Violation
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
		opts: opts, faults: opts.Faults, target: opts.Webhook, orgUUID: newUUID(),
		kick: make(chan struct{}, 1), mail: make(chan struct{}, 1),
		client:    &http.Client{Timeout: opts.HookTimeout, Transport: &http.Transport{Proxy: nil}},
		rng:       mathrand.New(mathrand.NewPCG(opts.Seed, 0x626b6974)), // faults must be repeatable
		pipelines: map[string]*pipeline{}, stacks: map[string]*stack{}, jobs: map[string]*job{},
		agents: map[int64]*agent{}, tokens: map[string]grant{}, flying: map[string]bool{},
		requests: map[string]int{}, windows: map[string][]time.Time{},
	}
	for _, key := range opts.Queues {
		s.queues = append(s.queues, &queue{uuid: newUUID(), key: key})
	}
	for _, token := range opts.Tokens {
		s.tokens[token] = grant{cluster: true}
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.api = s.routes()
	s.control = control.Handler(s, func(to control.WebhookTarget) error {
		s.SetWebhook(to)
		return nil
	})
	s.wg.Go(s.watchDeadlines)
	s.wg.Go(s.sendWebhooks)
	return s, nil
}

// Handler serves the API below /v3.
func (s *Server) Handler() http.Handler { return s.api }

// Control serves the control API. Anyone who reaches it may do anything.
func (s *Server) Control() http.Handler { return s.control }

// Close stops background work.
func (s *Server) Close() {
	s.stop()
	s.wg.Wait()
	s.client.CloseIdleConnections()
}

// Violations returns the breaches seen so far.
func (s *Server) Violations() []control.Violation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]control.Violation(nil), s.violations...)
}

// TakeViolations returns the breaches seen so far and forgets them.
func (s *Server) TakeViolations() []control.Violation {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.violations
	s.violations = nil
	return taken
}

// violate records a breach. The lock is held.
func (s *Server) violate(kind, method, path, message string) {
	s.opts.Log.Error("contract violation", "kind", kind, "method", method, "path", path, "error", message)
	s.violations = append(s.violations, control.Violation{
		Time: s.now(), Kind: kind, Method: method, Path: path, Message: message,
	})
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

// SetWebhook points the webhooks at a target; an empty URL stops them.
func (s *Server) SetWebhook(target control.WebhookTarget) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.target = target
}

// SetPaused pauses a queue, or resumes it.
func (s *Server) SetPaused(key string, paused bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.queues {
		if q.key == key {
			q.paused = paused
		}
	}
}

// RevokeToken makes an agent token of the cluster invalid.
func (s *Server) RevokeToken(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.tokens, token)
}

// ForgetStacks deregisters every stack, as a person could.
func (s *Server) ForgetStacks() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.stacks)
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

// lock takes the lock and brings the state up to now.
func (s *Server) lock() {
	s.mu.Lock()
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

func randomHex(bytes int) string {
	raw := make([]byte, bytes)
	_, _ = rand.Read(raw) // never fails
	return hex.EncodeToString(raw)
}

func newUUID() string {
	raw := make([]byte, 16)
	_, _ = rand.Read(raw) // never fails
	raw[6], raw[8] = raw[6]&0x0f|0x40, raw[8]&0x3f|0x80
	text := hex.EncodeToString(raw)
	return text[:8] + "-" + text[8:12] + "-" + text[12:16] + "-" + text[16:20] + "-" + text[20:]
}
