// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/demand"
	"github.com/hyperfleet/hyperfleet/workload"
)

// bindings are the jobs that were given to claims a moment ago: the cache may not show it
// yet. The zero value is ready to use.
type bindings struct {
	mu    sync.Mutex
	given map[types.NamespacedName]binding
}

type binding struct {
	claim types.UID
	at    time.Time
}

// cacheLag is how long a binding may be missing from the cache.
const cacheLag = 30 * time.Second

// noJobPatience is how long a machine that has no job waits for one before it ends: what
// is seen of jobs and of other machines may be late.
const noJobPatience = 15 * time.Second

// jobAgain is how soon such a machine looks again.
const jobAgain = 2 * time.Second

// bindJob gives a machine that is for one job that job, before anything is made for it.
func bindJob(ctx context.Context, s *scope) step.Result {
	if s.times().Started != nil || s.claim.Spec.Standby {
		return step.Done()
	}

	runner, err := s.Workloads.Runner(s.template, s.claim.Spec.WorkloadConfig)
	if err != nil || !runner.Binds {
		return step.Done() // what is wrong with the settings is told where they are used
	}

	_, err = s.bind(ctx)

	switch {
	case errors.Is(err, errNoJob) && s.since(s.asked()) > noJobPatience:
		return s.end(ctx, v1alpha1.EndReasonNoJob, errNoJob.Error())
	case errors.Is(err, errNoJob):
		return step.Wait(jobAgain, v1alpha1.EndReasonNoJob, errNoJob.Error())
	case err != nil:
		return step.Fail(err)
	default:
		return step.Done()
	}
}

// errNoJob says that a machine was made for a job that somebody else has taken.
var errNoJob = errors.New("no job waits for the machine any more")

// bind gives the claim the job that its runner is for, and keeps that in the status
// before anything else is done about it: so a job has one machine at a time, also over a
// crash.
func (s *scope) bind(ctx context.Context) (*v1alpha1.RunnerJob, error) {
	info := s.claim.Status.BootstrapInfo

	if info.BoundJob != "" {
		job, err := s.boundJob(ctx)
		if err != nil || job != nil {
			return job, err
		}

		info.BoundJob = ""
	}

	job, err := s.choose(ctx)
	if err != nil {
		return nil, err
	}

	info.BoundJob = job.Name

	if err := step.Save(ctx); err != nil {
		return nil, fmt.Errorf("keep the job of claim %s: %w", s.claim.Name, err)
	}

	return job, nil
}

// boundJob gives the job that the claim has already, if it is still to be run.
func (s *scope) boundJob(ctx context.Context) (*v1alpha1.RunnerJob, error) {
	info := s.claim.Status.BootstrapInfo

	var job v1alpha1.RunnerJob

	err := s.Client.Get(ctx, types.NamespacedName{Namespace: s.claim.Namespace, Name: info.BoundJob}, &job)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // no job is no error
	}

	if err != nil {
		return nil, fmt.Errorf("get job %s: %w", info.BoundJob, err)
	}

	mine := job.Spec.State == v1alpha1.JobRunning && job.Spec.RunnerName == info.RunnerName
	if job.Spec.State != v1alpha1.JobQueued && !mine {
		return nil, nil //nolint:nilnil // no job is no error
	}

	return &job, nil
}

// choose gives the first job, in the order of demand.Assign, that the claim's pool
// answers for and that no other claim has.
func (s *scope) choose(ctx context.Context) (*v1alpha1.RunnerJob, error) {
	jobs, pools, err := s.demand(ctx)
	if err != nil {
		return nil, err
	}

	var claims v1alpha1.MachineClaimList
	if err := s.Client.List(ctx, &claims, client.InNamespace(s.claim.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list machine claims: %w", err)
	}

	taken := map[string]bool{}

	for i := range claims.Items {
		other := &claims.Items[i]
		if info := other.Status.BootstrapInfo; info != nil && info.BoundJob != "" && other.UID != s.claim.UID && !over(other) {
			taken[info.BoundJob] = true
		}
	}

	return s.bindings.give(s.claim, candidates(s.claim, jobs, pools, taken), s.Clock.Now())
}

// over tells whether the claim's life is over: a job of its that still waits is free.
func over(claim *v1alpha1.MachineClaim) bool {
	times := claim.Status.Times

	return !claim.DeletionTimestamp.IsZero() || (times != nil && (times.Stopped != nil || times.Ended != nil))
}

// release lets the claim's job go to another claim at once.
func (b *bindings) release(claim *v1alpha1.MachineClaim) {
	b.mu.Lock()
	defer b.mu.Unlock()

	for job, last := range b.given {
		if last.claim == claim.UID {
			delete(b.given, job)
		}
	}
}

// demand reads the jobs and pools of the claim's namespace.
func (s *scope) demand(ctx context.Context) ([]v1alpha1.RunnerJob, []demand.Pool, error) {
	var jobs v1alpha1.RunnerJobList
	if err := s.Client.List(ctx, &jobs, client.InNamespace(s.claim.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, fmt.Errorf("list jobs: %w", err)
	}

	if s.claim.Spec.RunnerPoolRef == nil {
		alone := &v1alpha1.RunnerPool{ObjectMeta: s.claim.ObjectMeta}
		alone.Spec.Workload, alone.Spec.Scaling.MaxReplicas = s.claim.Spec.WorkloadConfig, 1
		alone.Spec.TemplateRef = s.claim.Spec.TemplateRef

		return jobs.Items, []demand.Pool{s.Platforms.PoolOf(alone, demand.Templates{s.template.Name: s.template})}, nil
	}

	pools, err := s.Platforms.Pools(ctx, s.Client, s.claim.Namespace)
	if err != nil {
		return nil, nil, fmt.Errorf("read pools: %w", err)
	}

	return jobs.Items, pools, nil
}

// candidates are the queued jobs that the claim's pool answers for and that ask for a machine
// of its size, in their turn. It is pure.
func candidates(
	claim *v1alpha1.MachineClaim, jobs []v1alpha1.RunnerJob, pools []demand.Pool, taken map[string]bool,
) []*v1alpha1.RunnerJob {
	pool := claim.Name
	if claim.Spec.RunnerPoolRef != nil {
		pool = claim.Spec.RunnerPoolRef.Name
	}

	var out []*v1alpha1.RunnerJob

	demand.Assign(jobs, pools, func(job *v1alpha1.RunnerJob, to demand.Pool) {
		if to.Name != pool || job.Spec.State != v1alpha1.JobQueued || taken[job.Name] {
			return
		}

		if size, _ := to.Size(job.Spec); size.Key() == demand.SizeKey(claim.Spec.Size) {
			out = append(out, job)
		}
	})

	return out
}

// give takes the first of the jobs that was not given to another claim a moment ago.
func (b *bindings) give(
	claim *v1alpha1.MachineClaim, jobs []*v1alpha1.RunnerJob, now time.Time,
) (*v1alpha1.RunnerJob, error) {
	b.mu.Lock()
	defer b.mu.Unlock()

	for job, last := range b.given {
		if now.Sub(last.at) > cacheLag {
			delete(b.given, job)
		}
	}

	at := slices.IndexFunc(jobs, func(job *v1alpha1.RunnerJob) bool {
		last, ok := b.given[client.ObjectKeyFromObject(job)]

		return !ok || last.claim == claim.UID
	})
	if at < 0 {
		return nil, errNoJob
	}

	if b.given == nil {
		b.given = map[types.NamespacedName]binding{}
	}

	b.given[client.ObjectKeyFromObject(jobs[at])] = binding{claim: claim.UID, at: now}

	return jobs[at].DeepCopy(), nil
}

// errJobGone says that the platform does not let the machine have its job any more.
var errJobGone = errors.New("the job is no longer available")

// jobGone writes the platform's word on a job that is not available into the ledger, so
// that no other machine is made for it.
func (s *scope) jobGone(ctx context.Context, provider workload.Provider, job *v1alpha1.RunnerJob, cause error) error {
	s.claim.Status.BootstrapInfo.BoundJob = ""
	s.bindings.release(s.claim)

	said, err := provider.Job(ctx, job.Spec.Repository, job.Spec.ID)
	if err == nil {
		said.Platform, said.ID, said.URL = job.Spec.Platform, job.Spec.ID, job.Spec.URL
		ledger := &demand.Ledger{Client: s.Client, Live: s.Live, Platforms: s.Platforms}
		_, err = ledger.Record(ctx, job.Namespace, said, s.Clock.Now())
	}

	return fmt.Errorf("%w: %w", errJobGone, errors.Join(cause, err))
}
