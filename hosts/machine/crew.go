// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/hosts/drift"
	"github.com/hyperfleet/hyperfleet/hosts/plan"
	"github.com/hyperfleet/hyperfleet/hosts/push"
	"github.com/hyperfleet/hyperfleet/hosts/ssh"
)

// job is work at one host, beside its reconcile.
type job struct {
	what   drift.Action
	target ssh.Target
	// plan, hash and labels of what is pushed; plan alone for a probe.
	plan    plan.Plan
	hash    string
	drifted []string
	// has are the digests of what the host got last.
	has []plan.Digest
	// permit that the job runs under; 0 for none.
	permit int64
	// wake the host's reconcile when it is over.
	wake func()
}

// outcome is what became of a job, and how long it took.
type outcome struct {
	drift.Outcome

	took time.Duration
}

// Crew does the work at hosts beside the reconciles: at most so many jobs at a time, and one
// at a host. It is a runnable of a manager.
type Crew struct {
	dialer  *ssh.Dialer
	clock   clock.PassiveClock
	timeout time.Duration
	slots   chan struct{}

	mu   sync.Mutex
	ctx  context.Context //nolint:containedctx // that of Start, for work that begins later
	jobs map[types.UID]*entry
	all  sync.WaitGroup
}

type entry struct {
	what   drift.Action
	cancel context.CancelFunc
	// done is nil while the job runs.
	done *outcome
}

// NewCrew makes a crew that does so many jobs at a time, each script within a time.
func NewCrew(dialer *ssh.Dialer, clk clock.PassiveClock, most int, timeout time.Duration) *Crew {
	return &Crew{
		dialer: dialer, clock: clk, timeout: timeout,
		slots: make(chan struct{}, max(1, most)), jobs: map[types.UID]*entry{},
	}
}

// Start lets work begin, until the context ends: then all is cut off where it is, and is
// done again by whoever comes next.
func (c *Crew) Start(ctx context.Context) error {
	c.mu.Lock()
	c.ctx = ctx
	c.mu.Unlock()

	<-ctx.Done()

	c.mu.Lock()
	c.ctx = nil
	c.mu.Unlock()

	c.all.Wait()

	return nil
}

// NeedLeaderElection says that only the leader works.
func (c *Crew) NeedLeaderElection() bool { return true }

// begin starts a job at a host that has none. It gives false where the crew does not work
// yet, or no more.
func (c *Crew) begin(host types.UID, work job) bool {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.ctx == nil || c.ctx.Err() != nil || c.jobs[host] != nil {
		return false
	}

	ctx, cancel := context.WithCancel(c.ctx)
	e := &entry{what: work.what, cancel: cancel}
	c.jobs[host] = e

	c.all.Go(func() {
		defer cancel()

		out := c.do(ctx, work)

		c.mu.Lock()
		e.done = &out
		c.mu.Unlock()

		work.wake()
	})

	return true
}

// outcome gives what became of a host's job; nil while it runs, and where there is none.
func (c *Crew) outcome(host types.UID) *outcome {
	c.mu.Lock()
	defer c.mu.Unlock()

	if e := c.jobs[host]; e != nil {
		return e.done
	}

	return nil
}

// knows says whether a host has a job, be it over or not.
func (c *Crew) knows(host types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.jobs[host] != nil
}

// runs gives what runs at a host; empty for nothing.
func (c *Crew) runs(host types.UID) drift.Action {
	c.mu.Lock()
	defer c.mu.Unlock()

	if e := c.jobs[host]; e != nil && e.done == nil {
		return e.what
	}

	return ""
}

// forget drops a job that is over, when what became of it is on record.
func (c *Crew) forget(host types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if e := c.jobs[host]; e != nil && e.done != nil {
		delete(c.jobs, host)
	}
}

// cancel cuts off a host's job. It is over a little later.
func (c *Crew) cancel(host types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if e := c.jobs[host]; e != nil {
		e.cancel()
	}
}

func (c *Crew) do(ctx context.Context, work job) outcome {
	out := outcome{Outcome: drift.Outcome{
		Action: work.what, Plan: work.plan, Hash: work.hash, Permit: work.permit, Has: work.has,
	}}

	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-ctx.Done():
		out.Err, out.At = ctx.Err(), c.clock.Now()

		return out
	}

	start := c.clock.Now()
	c.work(ctx, work, &out)
	out.At = c.clock.Now()
	out.took = out.At.Sub(start)

	return out
}

func (c *Crew) work(ctx context.Context, work job, out *outcome) {
	conn, err := c.dialer.Dial(ctx, work.target)
	if err != nil {
		out.HostKey, out.Err = ssh.HostKeyOf(err), err

		return
	}
	defer conn.Close() //nolint:errcheck // what matters has been heard

	// A connection does not know of contexts between scripts.
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()

	out.HostKey = conn.HostKey()
	options := push.Options{Timeout: c.timeout, Clock: c.clock}

	switch work.what {
	case drift.Greet:
	case drift.Probe:
		out.States, out.Err = push.Probe(ctx, conn, work.plan, options)
	case drift.FirstBoot:
		out.Result = push.FirstBoot(ctx, conn, work.plan, options)
	default:
		out.Result = push.Drift(ctx, conn, work.plan, work.drifted, options)
		if out.Result.Err == nil && len(work.plan.DriftSteps(work.drifted...)) == 0 {
			out.Result.Lost, out.Result.Err = lost(ctx, conn, work.plan, options)
		}
	}
}

// lost asks a host to which nothing was pushed: it is not called converged unasked, as it
// may be one that was cut off before it could be.
func lost(ctx context.Context, conn *ssh.Conn, p plan.Plan, options push.Options) ([]string, error) {
	states, err := push.Probe(ctx, conn, p, options)
	if err != nil {
		return nil, err
	}

	return p.LostParts(states), nil
}
