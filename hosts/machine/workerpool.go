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

// job is work on one host that runs outside the reconcile.
type job struct {
	action drift.Action
	target ssh.Target
	// plan, hash and drifted labels of what is pushed. A probe has only a plan.
	plan    plan.Plan
	hash    string
	drifted []string
	// appliedDigests are the digests of the parts that the host got last.
	appliedDigests []plan.Digest
	// removal is the script that a RemoveCredential runs.
	removal plan.Part
	// refusalTarget is the target that is recorded as refused if the host refuses the push.
	refusalTarget string
	// osScript runs osStep on the host. Both are empty if the job runs no step of an update.
	osScript plan.Part
	osStep   OSStepParams
	// credential is the issued credential that the plan pushes, or nil.
	credential *v1alpha1.HostNodeCredential
	// permit under which the job runs. It is 0 if there is none.
	permit int64
	// enqueue requests a reconcile of the host. It is called when the job has ended.
	enqueue func()
}

// outcome is the result of a job and its duration.
type outcome struct {
	drift.Outcome

	duration time.Duration
	// target of the job.
	target ssh.Target
	// credential that the job was to push to the host.
	credential *v1alpha1.HostNodeCredential
}

// WorkerPool runs jobs on hosts outside the reconciles. It runs a limited number of jobs at the
// same time, and at most one per host. It is a runnable of a manager.
type WorkerPool struct {
	dialer  *ssh.Dialer
	clock   clock.PassiveClock
	timeout time.Duration
	slots   chan struct{}

	mu      sync.Mutex
	ctx     context.Context //nolint:containedctx // the context of Start, for jobs that start later
	jobs    map[types.UID]*entry
	running sync.WaitGroup
}

// entry is the job of a host, from its start until its outcome is saved in the status.
type entry struct {
	action drift.Action
	cancel context.CancelFunc
	// outcome is nil while the job runs.
	outcome *outcome
}

// NewWorkerPool returns a pool that runs up to concurrency jobs at the same time. The timeout
// applies to each script.
func NewWorkerPool(dialer *ssh.Dialer, clk clock.PassiveClock, concurrency int, timeout time.Duration) *WorkerPool {
	return &WorkerPool{
		dialer: dialer, clock: clk, timeout: timeout,
		slots: make(chan struct{}, max(1, concurrency)), jobs: map[types.UID]*entry{},
	}
}

// Start accepts jobs until the context ends. Then it cancels the running jobs and waits for them.
// The next leader runs them again.
func (p *WorkerPool) Start(ctx context.Context) error {
	p.mu.Lock()
	p.ctx = ctx
	p.mu.Unlock()

	<-ctx.Done()

	p.mu.Lock()
	p.ctx = nil
	p.mu.Unlock()

	p.running.Wait()

	return nil
}

// NeedLeaderElection returns true, so that only the leader runs jobs.
func (p *WorkerPool) NeedLeaderElection() bool { return true }

// startJob starts a job on a host. It returns false if the host already has a job, or if the pool
// has not started or has stopped.
func (p *WorkerPool) startJob(host types.UID, work job) bool {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.ctx == nil || p.ctx.Err() != nil || p.jobs[host] != nil {
		return false
	}

	ctx, cancel := context.WithCancel(p.ctx)
	e := &entry{action: work.action, cancel: cancel}
	p.jobs[host] = e

	p.running.Go(func() {
		defer cancel()

		out := p.runJob(ctx, work)

		p.mu.Lock()
		e.outcome = &out
		p.mu.Unlock()

		work.enqueue()
	})

	return true
}

// finishedOutcome returns the outcome of a host's job. It returns nil while the job runs, and if
// there is no job.
func (p *WorkerPool) finishedOutcome(host types.UID) *outcome {
	p.mu.Lock()
	defer p.mu.Unlock()

	if e := p.jobs[host]; e != nil {
		return e.outcome
	}

	return nil
}

// hasJob returns true if the host has a job that is running or finished.
func (p *WorkerPool) hasJob(host types.UID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()

	return p.jobs[host] != nil
}

// runningAction returns the action that is running on the host, or an empty string if none is.
func (p *WorkerPool) runningAction(host types.UID) drift.Action {
	p.mu.Lock()
	defer p.mu.Unlock()

	if e := p.jobs[host]; e != nil && e.outcome == nil {
		return e.action
	}

	return ""
}

// deleteFinished drops a finished job. Call it after the outcome is saved.
func (p *WorkerPool) deleteFinished(host types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if e := p.jobs[host]; e != nil && e.outcome != nil {
		delete(p.jobs, host)
	}
}

// cancel cancels a host's job. The job ends some time after cancel returns.
func (p *WorkerPool) cancel(host types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if job := p.jobs[host]; job != nil {
		job.cancel()
	}
}

func (p *WorkerPool) runJob(ctx context.Context, work job) outcome {
	out := outcome{Outcome: drift.Outcome{
		Action: work.action, Plan: work.plan, Hash: work.hash, Target: work.refusalTarget,
		Permit: work.permit, AppliedDigests: work.appliedDigests,
	}, credential: work.credential, target: ssh.Target{Address: work.target.Address, Fallbacks: work.target.Fallbacks}}

	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-ctx.Done():
		out.Err, out.Time = ctx.Err(), p.clock.Now()

		return out
	}

	start := p.clock.Now()
	p.runOnHost(ctx, work, &out)
	out.Time = p.clock.Now()
	out.duration = out.Time.Sub(start)

	return out
}

// runOnHost executes the job's action over one SSH connection and writes the result to out. The action
// Connect without a known host key only fetches the key that the host presents, and does not log in.
func (p *WorkerPool) runOnHost(ctx context.Context, work job, out *outcome) {
	if work.action == drift.Connect && work.target.IsEmpty() {
		out.HostKey, out.Err = p.dialer.HostKey(ctx, work.target)

		return
	}

	conn, err := p.dialer.Dial(ctx, work.target)
	if err != nil {
		out.HostKey, out.Err = ssh.HostKeyOf(err), err

		return
	}
	defer conn.Close() //nolint:errcheck // all output was read before

	// The connection watches the context only while it runs a script, so close it when the context ends.
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()

	out.HostKey, out.Address = conn.HostKey(), conn.Address()
	options := push.Options{Timeout: p.timeout}

	switch work.action {
	case drift.Connect:
	case drift.RemoveCredential:
		_, out.Err = conn.Run(ctx, ssh.Script{
			Label: work.removal.Label, Input: strings.NewReader(work.removal.Input()), Timeout: p.timeout,
		})
	case drift.OSUpdate:
		p.runOSStep(ctx, conn, work, options, out)
	case drift.Probe:
		out.States, out.Err = push.Probe(ctx, conn, work.plan, options)
	case drift.FirstBoot:
		out.Result = push.Apply(ctx, conn, work.plan, work.plan.FirstBootSteps(), options)
	default:
		steps := work.plan.DriftSteps(work.drifted...)

		out.Result = push.Apply(ctx, conn, work.plan, steps, options)
		if out.Result.Err == nil && len(steps) == 0 {
			out.Result.LostParts, out.Result.Err = probeLostParts(ctx, conn, work.plan, options)
		}
	}

	if work.osStep.Step == OSVersion && out.Failure() == nil {
		out.OSVersion = p.queryOSVersion(ctx, conn, work)
	}
}

// probeLostParts probes a host to which nothing was pushed. Without a probe the host must not count
// as converged, because an earlier push may have been interrupted before it verified the host.
func probeLostParts(ctx context.Context, conn *ssh.Conn, p plan.Plan, options push.Options) ([]string, error) {
	states, err := push.Probe(ctx, conn, p, options)
	if err != nil {
		return nil, err
	}

	return p.LostParts(states), nil
}
