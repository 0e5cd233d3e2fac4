// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
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
	// leave is run by a Leave.
	leave plan.Part
	// target that is refused where what is pushed is.
	refuses string
	// os asks the host about its operating system, and ask is what; empty where it is not asked.
	os  plan.Part
	ask OSAsk
	// credential that the plan brings to the host; nil for none of ours.
	credential *v1alpha1.HostNodeCredential
	// permit that the job runs under; 0 for none.
	permit int64
	// enqueue asks for a pass over the host, when it is over.
	enqueue func()
}

// outcome is what became of a job, and how long it took.
type outcome struct {
	drift.Outcome

	took time.Duration
	// target that it was done at.
	target ssh.Target
	// credential that the job was to bring to the host.
	credential *v1alpha1.HostNodeCredential
}

// WorkerPool does the work at hosts beside the reconciles: at most so many jobs at a time, and one
// at a host. It is a runnable of a manager.
type WorkerPool struct {
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

// NewWorkerPool makes a pool that does so many jobs at a time, each script within a time.
func NewWorkerPool(dialer *ssh.Dialer, clk clock.PassiveClock, most int, timeout time.Duration) *WorkerPool {
	return &WorkerPool{
		dialer: dialer, clock: clk, timeout: timeout,
		slots: make(chan struct{}, max(1, most)), jobs: map[types.UID]*entry{},
	}
}

// Start lets work begin, until the context ends: then all is cut off where it is, and is
// done again by whoever comes next.
func (p *WorkerPool) Start(ctx context.Context) error {
	p.mu.Lock()
	p.ctx = ctx
	p.mu.Unlock()

	<-ctx.Done()

	p.mu.Lock()
	p.ctx = nil
	p.mu.Unlock()

	p.all.Wait()

	return nil
}

// NeedLeaderElection says that only the leader works.
func (p *WorkerPool) NeedLeaderElection() bool { return true }

// begin starts a job at a host that has none. It gives false where the pool does not work
// yet, or no more.
func (p *WorkerPool) begin(host types.UID, work job) bool {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.ctx == nil || p.ctx.Err() != nil || p.jobs[host] != nil {
		return false
	}

	ctx, cancel := context.WithCancel(p.ctx)
	e := &entry{what: work.what, cancel: cancel}
	p.jobs[host] = e

	p.all.Go(func() {
		defer cancel()

		out := p.do(ctx, work)

		p.mu.Lock()
		e.done = &out
		p.mu.Unlock()

		work.enqueue()
	})

	return true
}

// outcome gives what became of a host's job; nil while it runs, and where there is none.
func (p *WorkerPool) outcome(host types.UID) *outcome {
	p.mu.Lock()
	defer p.mu.Unlock()

	if e := p.jobs[host]; e != nil {
		return e.done
	}

	return nil
}

// knows says whether a host has a job, be it over or not.
func (p *WorkerPool) knows(host types.UID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()

	return p.jobs[host] != nil
}

// runs gives what runs at a host; empty for nothing.
func (p *WorkerPool) runs(host types.UID) drift.Action {
	p.mu.Lock()
	defer p.mu.Unlock()

	if e := p.jobs[host]; e != nil && e.done == nil {
		return e.what
	}

	return ""
}

// forget drops a job that is over, when what became of it is on record.
func (p *WorkerPool) forget(host types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if e := p.jobs[host]; e != nil && e.done != nil {
		delete(p.jobs, host)
	}
}

// cancel cuts off a host's job. It is over a little later.
func (p *WorkerPool) cancel(host types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if e := p.jobs[host]; e != nil {
		e.cancel()
	}
}

func (p *WorkerPool) do(ctx context.Context, work job) outcome {
	out := outcome{Outcome: drift.Outcome{
		Action: work.what, Plan: work.plan, Hash: work.hash, Target: work.refuses, Permit: work.permit, Has: work.has,
	}, credential: work.credential, target: ssh.Target{Address: work.target.Address, Fallbacks: work.target.Fallbacks}}

	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-ctx.Done():
		out.Err, out.At = ctx.Err(), p.clock.Now()

		return out
	}

	start := p.clock.Now()
	p.work(ctx, work, &out)
	out.At = p.clock.Now()
	out.took = out.At.Sub(start)

	return out
}

func (p *WorkerPool) work(ctx context.Context, work job, out *outcome) {
	if work.what == drift.Greet && work.target.Empty() {
		out.HostKey, out.Err = p.dialer.HostKey(ctx, work.target)

		return
	}

	conn, err := p.dialer.Dial(ctx, work.target)
	if err != nil {
		out.HostKey, out.Err = ssh.HostKeyOf(err), err

		return
	}
	defer conn.Close() //nolint:errcheck // what matters has been heard

	// A connection does not know of contexts between scripts.
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()

	out.HostKey, out.Address = conn.HostKey(), conn.Address()
	options := push.Options{Timeout: p.timeout, Clock: p.clock}

	switch work.what {
	case drift.Greet:
	case drift.Leave:
		_, out.Err = conn.Run(ctx, ssh.Script{
			Label: work.leave.Label, Input: strings.NewReader(work.leave.Input()), Timeout: p.timeout,
		})
	case drift.OSUpdate:
		p.askOS(ctx, conn, work, options, out)
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

	if work.ask.Step == OSVersion && out.Failure() == nil {
		out.OSVersion = p.versionOf(ctx, conn, work)
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
