// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	mathrand "math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
)

// Server is one simulated GitLab. Make it with New, serve Handler (and Control, on a
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

	mu         sync.Mutex
	rng        *mathrand.Rand
	faults     control.Faults
	webhook    control.WebhookTarget
	ids        ids
	projects   map[int64]*project
	groups     map[int64]*group
	tokens     map[string]*Token
	runners    map[int64]*runner
	jobs       map[int64]*job
	queue      []*job // status pending, oldest first
	outbox     []*delivery
	sending    int
	flying     map[int64]bool // jobs that a webhook is under way for
	health     hookHealth
	counts     control.WebhookCounts
	requests   map[string]int
	registered int
	// news counts what could change the answer to a runner's question for a job; changed is
	// closed when it moves.
	news       int64
	changed    chan struct{}
	violations []control.Violation
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
		opts: opts, faults: opts.Faults, webhook: opts.Webhook, base: "http://gitlab.invalid",
		flying: map[int64]bool{}, kick: make(chan struct{}, 1), mail: make(chan struct{}, 1),
		client:   &http.Client{Timeout: opts.HookTimeout, Transport: &http.Transport{Proxy: nil}},
		rng:      mathrand.New(mathrand.NewPCG(opts.Seed, 0x6c616221)), // faults must be repeatable
		ids:      ids{runner: 100, job: 1976, pipeline: 2365, project: 379, group: 34},
		projects: map[int64]*project{}, groups: map[int64]*group{}, tokens: map[string]*Token{},
		changed: make(chan struct{}),
		runners: map[int64]*runner{}, jobs: map[int64]*job{}, requests: map[string]int{},
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.populate()
	s.api = s.routes()
	s.control = control.Handler(s, func(to control.WebhookTarget) error {
		s.SetWebhook(to)
		return nil
	})
	s.wg.Go(s.watchDeadlines)
	s.wg.Go(s.sendWebhooks)
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
func (s *Server) violate(kind, method, path string, err error) {
	s.opts.Log.Error("contract violation", "kind", kind, "method", method, "path", path, "error", err.Error())
	s.violations = append(s.violations, control.Violation{
		Time: s.now(), Kind: kind, Method: method, Path: path, Message: err.Error(),
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

// SetWebhook points the hooks at a target; an empty URL stops them.
func (s *Server) SetWebhook(target control.WebhookTarget) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.webhook, s.health = target, hookHealth{}
}

// SetURL says where the instance is reached, which its links and its webhooks tell. Before
// it is set they tell what the last caller used.
func (s *Server) SetURL(address string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.base, s.named = strings.TrimRight(address, "/"), true
}

// Revoke makes a token useless from now on.
func (s *Server) Revoke(token string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.tokens[token]
	if known == nil {
		return errors.New("revoke token: there is no such token")
	}
	known.Revoked = true
	return nil
}

func (s *Server) now() time.Time { return s.opts.Clock.Now() }

// chance draws from the seeded source. The lock is held.
func (s *Server) chance(p float64) bool { return p > 0 && s.rng.Float64() < p }

// tick wakes the runners whose questions are held. The lock is held.
func (s *Server) tick() {
	s.news++
	close(s.changed)
	s.changed = make(chan struct{})
}

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

// wait sleeps on the server's clock; false when the caller or server is gone.
func (s *Server) wait(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	select {
	case <-s.opts.Clock.After(d):
		return true
	case <-ctx.Done():
	case <-s.ctx.Done():
	}
	return false
}

// secret makes a token of that prefix, in the form that GitLab's have.
func secret(prefix string) string {
	raw := make([]byte, 15)
	_, _ = rand.Read(raw) // never fails
	return prefix + base64.RawURLEncoding.EncodeToString(raw)
}

func randomHex(n int) string {
	raw := make([]byte, n)
	_, _ = rand.Read(raw) // never fails
	return hex.EncodeToString(raw)
}

// stamp writes a time as GitLab's API does; nil when it is zero.
func stamp(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z")
}
