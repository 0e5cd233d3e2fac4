// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/demand"
	"github.com/hyperfleet/hyperfleet/workload"
)

// bindings holds the jobs that were recently bound to claims, because the cache may not show the bindings
// yet. A claim has at most one of them. The zero value is ready to use.
type bindings struct {
	mu      sync.Mutex
	byJob   map[types.NamespacedName]binding
	byClaim map[types.UID]types.NamespacedName
	sweptAt time.Time
}

type binding struct {
	claim   types.UID
	boundAt time.Time
}

// maxCacheLag is how long a binding may be missing from the cache.
const maxCacheLag = 30 * time.Second

// noJobTimeout is how long a machine without a job waits for a job before it ends. The wait is needed
// because the cached state of jobs and other machines may be out of date.
const noJobTimeout = 15 * time.Second

// noJobInterval is how often such a machine searches for a job.
const noJobInterval = 2 * time.Second

// bindJob binds a machine to its job before the VM is created, if the platform binds each runner to one job.
func bindJob(ctx context.Context, s *scope) step.Result {
	if s.times().Started != nil || s.claim.Spec.Standby {
		return step.Done()
	}

	if !s.needsJob() {
		return step.Done()
	}

	switch isStarted, hasCredential, err := s.inspectWithoutJob(ctx); {
	case err != nil:
		return waitForHypervisor(err)
	case isStarted:
		return step.Done() // provision records it
	case hasCredential:
		return s.endMachine(ctx, guest.ReasonJobGone, errJobGone.Error())
	}

	_, err := s.ensureBoundJob(ctx)
	if result := waitForJobs(err); !result.IsDone() {
		return result
	}

	switch {
	case errors.Is(err, errNoJob) && s.elapsedSince(s.requestedAt()) > noJobTimeout:
		return s.endMachine(ctx, v1alpha1.EndReasonNoJob, errNoJob.Error())
	case errors.Is(err, errNoJob):
		return step.Wait(noJobInterval, v1alpha1.EndReasonNoJob, errNoJob.Error())
	case err != nil:
		return step.Fail(err)
	default:
		return step.Done()
	}
}

// needsJob reports whether the platform binds each runner to one job. It returns false if the runner's settings are
// invalid: the step that uses the settings reports the error.
func (s *scope) needsJob() bool {
	runner, err := s.Workloads.ResolveRunner(s.template, s.claim.Spec.WorkloadConfig)

	return err == nil && runner.NeedsJob
}

// waitForJobs returns a wait if the error says that the next assignment may have a job, and Done otherwise.
func waitForJobs(err error) step.Result {
	if outdated, ok := errors.AsType[outdatedError](err); ok {
		return step.Wait(outdated.retryAfter, v1alpha1.EndReasonNoJob, errNoJob.Error()).DeferWrite()
	}

	return step.Done()
}

// errNoJob means that the job for which the machine was created is already bound to another machine, or no
// longer queued.
var errNoJob = errors.New("no queued job is left for the machine")

// ensureBoundJob returns the job of the claim. If the claim has none, it chooses a job. recordBinding must follow before
// the job is used.
func (s *scope) ensureBoundJob(ctx context.Context) (*v1alpha1.RunnerJob, error) {
	info := s.claim.Status.BootstrapInfo

	if info.BoundJob != "" {
		job, err := s.boundJob(ctx)
		if err != nil || job != nil {
			return job, err
		}

		info.BoundJob = ""
	}

	job, err := s.chooseJob(ctx)
	if err != nil {
		return nil, err
	}

	info.BoundJob = job.Name

	return job, nil
}

// recordBinding writes the job of the claim to the claim's status, unless the API server has it. So a job has only one
// machine at a time, even after a crash. Usually recordCreateRequest has written it, together with the ID of the machine.
func (s *scope) recordBinding(ctx context.Context) error {
	if s.isBindingRecorded(ctx) {
		return nil
	}

	if err := step.SaveStatus(ctx); err != nil {
		return fmt.Errorf("record job of claim %s: %w", s.claim.Name, err)
	}

	return nil
}

// isBindingRecorded reports whether the API server has the job of the claim.
func (s *scope) isBindingRecorded(ctx context.Context) bool {
	saved, ok := step.SavedObject(ctx).(*v1alpha1.MachineClaim)

	return ok && boundJobOf(saved) == boundJobOf(s.claim)
}

// boundJobOf returns the name of the job that a claim's machine is bound to, or "".
func boundJobOf(claim *v1alpha1.MachineClaim) string {
	if claim.Status.BootstrapInfo == nil {
		return ""
	}

	return claim.Status.BootstrapInfo.BoundJob
}

// inspectWithoutJob inspects a machine that was requested for a job that is no longer queued. isStarted is true if the
// machine was started, although the status does not say so. hasCredential is true if it may have the credential of the job.
// Then it must not be bound to another job: it would run the first one, and its reports would be those of the other.
func (s *scope) inspectWithoutJob(ctx context.Context) (isStarted, hasCredential bool, err error) {
	if boundJobOf(s.claim) == "" || s.times().CloneStarted == nil {
		return false, false, nil
	}

	job, err := s.boundJob(ctx)
	if err != nil || job != nil {
		return false, false, err
	}

	machine, err := s.provider.Get(ctx, s.machineRef())

	exists := !hypervisor.Is(err, hypervisor.NotFound)
	if err != nil && exists {
		return false, false, err
	}

	isStarted = exists && (machine.State == hypervisor.StateRunning || machine.State == hypervisor.StateStopped)
	isCallback := s.template != nil && s.template.Spec.Bootstrap.Method == v1alpha1.BootstrapCallback

	// An earlier process may have created the cloud-init ISO of a machine that exists.
	return isStarted, !isCallback && (exists || s.issued.has(s.claim)), nil
}

// boundJob returns the recorded job of the claim if it is still queued, or if the claim's runner took it. Otherwise it
// returns nil.
func (s *scope) boundJob(ctx context.Context) (*v1alpha1.RunnerJob, error) {
	info := s.claim.Status.BootstrapInfo

	var job v1alpha1.RunnerJob

	err := s.Client.Get(ctx, types.NamespacedName{Namespace: s.claim.Namespace, Name: info.BoundJob}, &job)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // a missing job is not an error
	}

	if err != nil {
		return nil, fmt.Errorf("get job %s: %w", info.BoundJob, err)
	}

	isOwn := isTakenBy(&job, info.RunnerName)
	if job.Spec.State != v1alpha1.JobQueued && !isOwn {
		return nil, nil //nolint:nilnil // a missing job is not an error
	}

	return &job, nil
}

// isTakenBy reports whether the RunnerJob says that the runner took the job. The job may have ended since.
func isTakenBy(job *v1alpha1.RunnerJob, runner string) bool {
	return runner != "" && job.Spec.RunnerName == runner &&
		(job.Spec.State == v1alpha1.JobRunning || job.Spec.State == v1alpha1.JobCompleted)
}

// chooseJob binds the claim to the first job, in the order of demand.Assign, that is assigned to the claim's pool and
// that no other claim has, and returns the job.
func (s *scope) chooseJob(ctx context.Context) (*v1alpha1.RunnerJob, error) {
	now := s.Clock.Now()

	if name := s.bindings.jobOf(s.claim, now); name != "" {
		job, err := s.getQueuedJob(ctx, name) // its binding was not written
		if err != nil {
			return nil, err
		}

		// The cache may show the repeated write as late as the first one, so the binding begins again.
		if job != nil && s.bindings.bind(s.claim, job, now) {
			return job, nil
		}
	}

	if s.claim.PoolName() != "" {
		return s.assignments.bindNext(ctx, s, now)
	}

	free, err := s.listFreeJobs(ctx)
	if err != nil {
		return nil, err
	}

	return s.bindFirst(ctx, &free, keyOf(s.claim), now)
}

// bindFirst binds the claim to the first of the free jobs with the key that is still queued, and removes the jobs that it
// has looked at. It returns errNoJob if there is none.
func (s *scope) bindFirst(ctx context.Context, free *freeJobs, key jobKey, now time.Time) (*v1alpha1.RunnerJob, error) {
	for len((*free)[key]) > 0 {
		name := (*free)[key][0]
		(*free)[key] = (*free)[key][1:]

		job, err := s.getQueuedJob(ctx, name)
		if err != nil {
			return nil, err
		}

		if job != nil && s.bindings.bind(s.claim, job, now) {
			return job, nil
		}
	}

	return nil, errNoJob
}

// getQueuedJob returns a job of the claim's namespace, or nil if it is not queued.
func (s *scope) getQueuedJob(ctx context.Context, name string) (*v1alpha1.RunnerJob, error) {
	var job v1alpha1.RunnerJob

	err := s.Client.Get(ctx, types.NamespacedName{Namespace: s.claim.Namespace, Name: name}, &job)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // a missing job is not an error
	}

	if err != nil {
		return nil, fmt.Errorf("get job %s: %w", name, err)
	}

	if job.Spec.State != v1alpha1.JobQueued || !job.DeletionTimestamp.IsZero() {
		return nil, nil //nolint:nilnil // as above
	}

	return &job, nil
}

// isOver reports whether the claim is deleted, or its machine has stopped or ended. Another claim may get
// its job if the job is still queued.
func isOver(claim *v1alpha1.MachineClaim) bool {
	times := claim.Status.Times

	return !claim.DeletionTimestamp.IsZero() || (times != nil && (times.Stopped != nil || times.Ended != nil))
}

// release removes the binding of the claim, so that another claim can get its job at once.
func (b *bindings) release(claim *v1alpha1.MachineClaim) {
	b.mu.Lock()
	defer b.mu.Unlock()

	if job, ok := b.byClaim[claim.UID]; ok {
		delete(b.byJob, job)
		delete(b.byClaim, claim.UID)
	}
}

// listDemand lists the unfinished jobs and the pools of the claim's namespace. For a claim without a pool, the only pool
// is a virtual pool of one machine, with the settings of the claim.
func (s *scope) listDemand(ctx context.Context) ([]v1alpha1.RunnerJob, []demand.Pool, error) {
	var jobs v1alpha1.RunnerJobList
	if err := s.Client.List(ctx, &jobs, client.InNamespace(s.claim.Namespace), demand.Unfinished(),
		client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, fmt.Errorf("list jobs: %w", err)
	}

	if s.claim.PoolName() == "" {
		pool := &v1alpha1.RunnerPool{ObjectMeta: s.claim.ObjectMeta}
		pool.Spec.Workload, pool.Spec.Scaling.MaxReplicas = s.claim.Spec.WorkloadConfig, 1
		pool.Spec.TemplateRef = s.claim.Spec.TemplateRef

		return jobs.Items, []demand.Pool{s.Platforms.NewPool(pool, demand.Templates{s.template.Name: s.template})}, nil
	}

	pools, err := s.Platforms.ListPools(ctx, s.Client, s.claim.Namespace)
	if err != nil {
		return nil, nil, fmt.Errorf("list runner pools: %w", err)
	}

	return jobs.Items, pools, nil
}

// bind binds the claim to the job. It returns false, and does nothing, if the job was recently bound to another claim.
func (b *bindings) bind(claim *v1alpha1.MachineClaim, job *v1alpha1.RunnerJob, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()

	b.sweep(now)

	key := client.ObjectKeyFromObject(job)
	if last, ok := b.byJob[key]; ok && last.claim != claim.UID && now.Sub(last.boundAt) <= maxCacheLag {
		return false
	}

	if b.byJob == nil {
		b.byJob, b.byClaim = map[types.NamespacedName]binding{}, map[types.UID]types.NamespacedName{}
	}

	delete(b.byClaim, b.byJob[key].claim)
	delete(b.byJob, b.byClaim[claim.UID])
	b.byJob[key], b.byClaim[claim.UID] = binding{claim: claim.UID, boundAt: now}, key

	return true
}

// jobOf returns the name of the job that was recently bound to the claim, or "".
func (b *bindings) jobOf(claim *v1alpha1.MachineClaim, now time.Time) string {
	b.mu.Lock()
	defer b.mu.Unlock()

	job, ok := b.byClaim[claim.UID]
	if !ok || now.Sub(b.byJob[job].boundAt) > maxCacheLag {
		return ""
	}

	return job.Name
}

// sweep deletes the bindings that the cache shows by now, at most once in maxCacheLag.
func (b *bindings) sweep(now time.Time) {
	if now.Sub(b.sweptAt) <= maxCacheLag {
		return
	}

	b.sweptAt = now

	for job, last := range b.byJob {
		if now.Sub(last.boundAt) > maxCacheLag {
			delete(b.byJob, job)
			delete(b.byClaim, last.claim)
		}
	}
}

// errJobGone means that the CI platform no longer lets the machine run its job.
var errJobGone = errors.New("the job is no longer available")

// handleJobGone releases the job, and records its state from the CI platform in the RunnerJob, so that no
// other machine is created for it. It returns errJobGone joined with the cause.
func (s *scope) handleJobGone(ctx context.Context, provider workload.Provider, job *v1alpha1.RunnerJob, cause error) error {
	s.claim.Status.BootstrapInfo.BoundJob = ""
	s.bindings.release(s.claim)

	current, err := provider.GetJob(ctx, job.Spec.Repository, job.Spec.ID)
	if err == nil {
		current.Platform, current.ID, current.URL = job.Spec.Platform, job.Spec.ID, job.Spec.URL
		ledger := &demand.Ledger{Client: s.Client, Live: s.Live, Platforms: s.Platforms}
		_, err = ledger.Update(ctx, job, current, s.Clock.Now())
	}

	return fmt.Errorf("%w: %w", errJobGone, errors.Join(cause, err))
}
