// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
)

// Config is what a Core is made of.
type Config struct {
	Clock  clock.Clock
	Log    *slog.Logger
	Faults control.Faults
	// Check refuses faults that the platform doesn't have.
	Check func(control.Faults) error
	// Seed and Platform make the faults repeatable, and different for each platform.
	Seed, Platform uint64
	// HookTimeout bounds one delivery of a webhook.
	HookTimeout time.Duration
}

// Record is what the control API asks any simulator for. Its methods take the lock.
type Record struct {
	mu     sync.Mutex
	clock  clock.Clock
	log    *slog.Logger
	check  func(control.Faults) error
	faults control.Faults
	breach []control.Violation
}

// SetFaults replaces the faults.
func (r *Record) SetFaults(f control.Faults) error {
	if err := r.check(f); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = f
	return nil
}

// Violations returns the breaches seen so far.
func (r *Record) Violations() []control.Violation {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]control.Violation(nil), r.breach...)
}

// TakeViolations returns the breaches seen so far and forgets them.
func (r *Record) TakeViolations() []control.Violation {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := r.breach
	r.breach = nil
	return taken
}

// Core is the state and the life of one simulator. Unless said otherwise its methods are
// called with Mu held.
type Core struct {
	*Record

	Mu       *sync.Mutex // guards the platform's state, too
	Counts   control.WebhookCounts
	Requests map[string]int // calls by operation
	Rand     *rand.Rand

	ctx    context.Context //nolint:containedctx // lifetime of the simulator's goroutines and held calls
	stop   context.CancelFunc
	wg     sync.WaitGroup
	kick   chan struct{}
	client *http.Client
}

// New makes a Core.
func New(c Config) *Core {
	record := &Record{clock: c.Clock, log: c.Log, check: c.Check, faults: c.Faults}
	out := &Core{
		Record: record, Mu: &record.mu, Requests: map[string]int{}, kick: make(chan struct{}, 1),
		Rand:   rand.New(rand.NewPCG(c.Seed, c.Platform)), // #nosec G404 -- faults must be repeatable
		client: &http.Client{Timeout: c.HookTimeout, Transport: &http.Transport{Proxy: nil}},
	}
	out.ctx, out.stop = context.WithCancel(context.Background())
	return out
}

// Close stops background work and ends held calls. Mu is not held.
func (c *Core) Close() {
	c.stop()
	c.wg.Wait()
	c.client.CloseIdleConnections()
}

// Done is closed when the simulator is.
func (c *Core) Done() <-chan struct{} { return c.ctx.Done() }

// Now is the simulator's time. Mu need not be held.
func (c *Core) Now() time.Time { return c.clock.Now() }

// Faults are those in force.
func (c *Core) Faults() control.Faults { return c.faults }

// Chance draws from the seeded source.
func (c *Core) Chance(p float64) bool { return p > 0 && c.Rand.Float64() < p }

// maxMessage bounds a violation's text; schema errors quote whole schemas.
const maxMessage = 1000

// Violate records a breach of the contract.
func (c *Core) Violate(kind, method, path, message string) {
	if len(message) > maxMessage {
		message = message[:maxMessage] + "..."
	}
	c.log.Error("contract violation", "kind", kind, "method", method, "path", path, "error", message)
	c.breach = append(c.breach, control.Violation{Time: c.Now(), Kind: kind, Method: method, Path: path, Message: message})
}

// Snapshot is the part of the state that the Core knows.
func (c *Core) Snapshot() control.State {
	return control.State{
		Now: c.Now(), Jobs: []control.Job{}, Runners: []control.Runner{}, Webhooks: c.Counts, Requests: maps.Clone(c.Requests),
	}
}

// Sleep waits on the simulator's clock; false when the caller or the simulator is gone. Mu
// is not held.
func (c *Core) Sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	select {
	case <-c.clock.After(d):
		return true
	case <-ctx.Done():
	case <-c.ctx.Done():
	}
	return false
}

// Kick has Watch look again now.
func (c *Core) Kick() { Poke(c.kick) }

// Watch keeps the state moving when nobody calls: it calls next, which takes Mu itself and
// says how long nothing will be due, when that time is over and when it is kicked.
func (c *Core) Watch(next func() time.Duration) { c.wg.Go(func() { c.loop(c.kick, next) }) }

// loop calls next again when the time that it gave is over, or when it is woken.
func (c *Core) loop(wake <-chan struct{}, next func() time.Duration) {
	for c.ctx.Err() == nil {
		timer := c.clock.NewTimer(max(next(), time.Millisecond))
		select {
		case <-timer.C():
		case <-wake:
		case <-c.ctx.Done():
		}
		timer.Stop()
	}
}

// Poke wakes whoever listens on a channel of capacity 1.
func Poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
