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

// Config configures a Core.
type Config struct {
	Clock  clock.Clock
	Log    *slog.Logger
	Faults control.Faults
	// Check returns an error for faults that the platform does not have.
	Check func(control.Faults) error
	// Seed and Platform make the faults repeatable, and different for each platform.
	Seed, Platform uint64
	// HookTimeout is the timeout of one webhook delivery.
	HookTimeout time.Duration
}

// Record holds the faults and the contract violations of a simulator for the control API. Its
// methods take the lock.
type Record struct {
	mu         sync.Mutex
	clock      clock.Clock
	log        *slog.Logger
	check      func(control.Faults) error
	faults     control.Faults
	violations []control.Violation
}

// SetFaults replaces the faults. It returns an error if the platform does not have a fault.
func (r *Record) SetFaults(f control.Faults) error {
	if err := r.check(f); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = f
	return nil
}

// Violations returns the contract violations so far.
func (r *Record) Violations() []control.Violation {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]control.Violation(nil), r.violations...)
}

// TakeViolations returns the contract violations so far and deletes them.
func (r *Record) TakeViolations() []control.Violation {
	r.mu.Lock()
	defer r.mu.Unlock()
	violations := r.violations
	r.violations = nil
	return violations
}

// Core holds the state that all simulators have, and runs their goroutines. Call its methods with
// Mu held, unless their comments say otherwise.
type Core struct {
	*Record

	Mu       *sync.Mutex // also guards the platform's state
	Counts   control.WebhookCounts
	Requests map[string]int // number of calls by operation
	Rand     *rand.Rand

	ctx    context.Context //nolint:containedctx // lifetime of the simulator's goroutines and held calls
	stop   context.CancelFunc
	wg     sync.WaitGroup
	wake   chan struct{}
	client *http.Client
}

// New creates a Core.
func New(c Config) *Core {
	record := &Record{clock: c.Clock, log: c.Log, check: c.Check, faults: c.Faults}
	out := &Core{
		Record: record, Mu: &record.mu, Requests: map[string]int{}, wake: make(chan struct{}, 1),
		Rand:   rand.New(rand.NewPCG(c.Seed, c.Platform)), // #nosec G404 -- faults must be repeatable
		client: &http.Client{Timeout: c.HookTimeout, Transport: &http.Transport{Proxy: nil}},
	}
	out.ctx, out.stop = context.WithCancel(context.Background())
	return out
}

// Close stops the goroutines and ends the calls that the simulator holds open. The caller must not
// hold Mu.
func (c *Core) Close() {
	c.stop()
	c.wg.Wait()
	c.client.CloseIdleConnections()
}

// Done returns a channel that is closed when the simulator is closed.
func (c *Core) Done() <-chan struct{} { return c.ctx.Done() }

// Now returns the simulator's time. The caller need not hold Mu.
func (c *Core) Now() time.Time { return c.clock.Now() }

// Faults returns the current faults.
func (c *Core) Faults() control.Faults { return c.faults }

// Occurs reports whether a fault with probability p occurs. It draws from the seeded source.
func (c *Core) Occurs(p float64) bool { return p > 0 && c.Rand.Float64() < p }

// maxMessage is the maximum length of a violation's message in bytes. Schema errors quote whole
// schemas.
const maxMessage = 1000

// AddViolation logs and records a violation of the contract.
func (c *Core) AddViolation(kind, method, path, message string) {
	if len(message) > maxMessage {
		message = message[:maxMessage] + "..."
	}
	c.log.Error("contract violation", "kind", kind, "method", method, "path", path, "error", message)
	c.violations = append(c.violations, control.Violation{Time: c.Now(), Kind: kind, Method: method, Path: path, Message: message})
}

// Snapshot returns the part of the state that the Core holds.
func (c *Core) Snapshot() control.State {
	return control.State{
		Now: c.Now(), Jobs: []control.Job{}, Runners: []control.Runner{}, Webhooks: c.Counts, Requests: maps.Clone(c.Requests),
	}
}

// Sleep waits for d on the simulator's clock. It returns false if ctx ends or the simulator is
// closed first. The caller must not hold Mu.
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

// Wake makes the goroutine of Schedule call its function now.
func (c *Core) Wake() { Wake(c.wake) }

// Schedule starts a goroutine that updates the state while no requests arrive. The goroutine calls
// next, which takes Mu itself and returns the delay until the next change is due. The goroutine
// calls next again after this delay or a call to Wake.
func (c *Core) Schedule(next func() time.Duration) { c.wg.Go(func() { c.runLoop(c.wake, next) }) }

// runLoop calls next again after each delay that next returns, and after each signal on wake, until
// the simulator is closed.
func (c *Core) runLoop(wake <-chan struct{}, next func() time.Duration) {
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

// Wake sends a signal on a channel of capacity 1, unless a signal is already pending.
func Wake(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
