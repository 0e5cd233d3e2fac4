// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runnerpool

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/demand"
	"github.com/hyperfleet/hyperfleet/workload"
)

// view holds the claims and jobs of a pool that one reconcile reads.
type view struct {
	claims []v1alpha1.MachineClaim
	// states holds the state of each of the claims, in the same order, and then those of claims that the cache does not have
	// yet.
	states []demand.Claim
	count  demand.JobCount
	// sizes of the queued jobs, in the order in which their machines should be created.
	sizes []demand.Size
	// arrivals are the times at which the operator received the jobs of a pool with warm machines.
	arrivals []time.Time
	// runners describes the pool's runners.
	runners string
}

// findClaim returns the claim that a decision names. It returns nil for a claim that is new and not in the
// cache yet.
func (v *view) findClaim(name string) *v1alpha1.MachineClaim {
	index := slices.IndexFunc(v.claims, func(c v1alpha1.MachineClaim) bool { return c.Name == name })
	if index < 0 {
		return nil
	}

	return &v.claims[index]
}

// observe counts the pool's claims and jobs and writes the numbers into the status.
func observe(ctx context.Context, s *scope) step.Result {
	start := s.Clock.Now()
	read, err := s.readView(ctx)
	s.throttle.recordRead(start, s.Clock.Now())

	if err != nil {
		return step.Fail(err)
	}

	s.view = read
	status := &s.pool.Status
	status.Replicas, status.ReadyReplicas, status.BusyReplicas, status.StandbyReplicas = 0, 0, 0, 0
	status.QueuedJobs, status.RunningJobs = int32(read.count.Queued), int32(read.count.Running) //nolint:gosec // far below 2^31
	status.Selector = labels.Set{v1alpha1.LabelRunnerPool: s.pool.Name}.String()

	for _, claim := range read.states {
		switch claim.State {
		case demand.ClaimFinishing:
			continue
		case demand.ClaimStandby:
			if claim.Prepared {
				status.StandbyReplicas++
			}

			continue
		case demand.ClaimBusy:
			status.BusyReplicas++
			status.ReadyReplicas++
		case demand.ClaimIdle:
			status.ReadyReplicas++
		case demand.ClaimPending, demand.ClaimBooting:
		}

		status.Replicas++
	}

	countFailures(status, read.claims)

	return s.addSourceCondition(step.Done().WithReason("Counted", read.runners))
}

// readView reads the claims of the pool and the unfinished jobs, and evaluates the state of each machine and the queued
// jobs that have no machine yet. Claims that the cache does not show yet are included.
func (s *scope) readView(ctx context.Context) (*view, error) {
	var (
		claims v1alpha1.MachineClaimList
		jobs   v1alpha1.RunnerJobList
	)

	// The objects belong to the cache and must not be changed. A copy of them all would be
	// expensive for a pool with a thousand jobs. Completed jobs stay in the cache for a day.
	namespace := client.InNamespace(s.pool.Namespace)
	if err := s.Client.List(ctx, &claims, namespace, client.UnsafeDisableDeepCopy,
		client.MatchingLabels{v1alpha1.LabelRunnerPool: s.pool.Name}); err != nil {
		return nil, fmt.Errorf("list machine claims of pool %s: %w", s.pool.Name, err)
	}

	if err := s.Client.List(ctx, &jobs, namespace, demand.Unfinished(), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list unfinished jobs: %w", err)
	}

	pools, err := s.loadPools(ctx)
	if err != nil {
		return nil, err
	}

	key, now := client.ObjectKeyFromObject(s.pool), s.Clock.Now()
	out := &view{}
	out.count, out.sizes = demand.FindDemand(jobs.Items, pools, key)

	byRunner, err := s.findJobStates(ctx, jobs.Items, claims.Items)
	if err != nil {
		return nil, err
	}

	if out.arrivals, err = s.findArrivals(ctx, pools); err != nil {
		return nil, err
	}

	for i := range pools {
		if pools[i].Key() == key {
			out.runners = describeRunners(pools[i].Runner)
		}
	}

	for i := range claims.Items {
		claim := &claims.Items[i]
		if isRestored(claim, s.pool) {
			if claim, err = s.adoptClaim(ctx, claim); err != nil {
				return nil, err
			}
		}

		if metav1.IsControlledBy(claim, s.pool) {
			out.claims = append(out.claims, *claim)
			out.states = append(out.states, evaluateClaim(claim, byRunner))
		}
	}

	notCached, notCachedBySource, err := s.expectations.listNotCached(ctx, s.Live, s.pool, out.claims, now)
	if err != nil {
		return nil, err
	}

	s.onlineTimes.addTo(out.claims, byRunner, now)
	s.fullClusters.record(out.claims, s.sources, now)
	s.startups.record(out.claims)

	if err := s.assessClaims(ctx, out, notCachedBySource); err != nil {
		return nil, err
	}

	out.states = append(out.states, notCached...)
	taken, decreasesIn := s.unconfirmedStarts.count(out.claims, byRunner, now)
	s.recheckIn = step.ChooseSooner(s.recheckIn, decreasesIn)
	out.sizes = removeTaken(out.sizes, taken)
	out.count.Queued = len(out.sizes)

	return out, nil
}

// findJobStates returns the state of the job of each of the pool's runners, by the name of the runner. The state
// is empty if the ledger has no job of the runner. unfinished are the jobs that are not completed.
func (s *scope) findJobStates(
	ctx context.Context, unfinished []v1alpha1.RunnerJob, claims []v1alpha1.MachineClaim,
) (map[string]v1alpha1.JobState, error) {
	out := make(map[string]v1alpha1.JobState, len(claims)+len(s.unconfirmedStarts.runners))

	for i := range claims {
		// The job of a machine that is being deleted makes a difference only if the machine has reported the job, see
		// unconfirmedStarts.
		if info := claims[i].Status.BootstrapInfo; info != nil && (claims[i].DeletionTimestamp.IsZero() || hasTakenJob(&claims[i])) {
			out[info.RunnerName] = ""
		}
	}

	for runner := range s.unconfirmedStarts.runners {
		out[runner] = ""
	}

	for i := range unfinished {
		job := &unfinished[i].Spec
		if _, isOwn := out[job.RunnerName]; isOwn {
			out[job.RunnerName] = job.State
		}
	}

	delete(out, "")

	for runner, state := range out {
		if state != "" {
			continue
		}

		var jobs v1alpha1.RunnerJobList

		err := s.Client.List(ctx, &jobs, client.InNamespace(s.pool.Namespace), client.UnsafeDisableDeepCopy,
			client.MatchingFields{demand.IndexRunnerName: runner})
		if err != nil {
			return nil, fmt.Errorf("list jobs of runner %s: %w", runner, err)
		}

		for i := range jobs.Items {
			// A job that has changed since unfinished was read would count twice.
			if job := &jobs.Items[i]; job.Spec.State == v1alpha1.JobCompleted && !containsJob(unfinished, job.Name) {
				out[runner] = job.Spec.State
			}
		}
	}

	return out, nil
}

func containsJob(jobs []v1alpha1.RunnerJob, name string) bool {
	return slices.ContainsFunc(jobs, func(job v1alpha1.RunnerJob) bool { return job.Name == name })
}

const kindRunnerPool = "RunnerPool"

// isRestored reports whether a claim was created for the pool, but has no owner, or an earlier pool of the same
// name as its owner. This happens if objects are restored from a backup, because they get new UIDs. It is pure.
func isRestored(claim *v1alpha1.MachineClaim, pool *v1alpha1.RunnerPool) bool {
	if claim.Spec.RunnerPoolRef == nil || claim.Spec.RunnerPoolRef.Name != pool.Name ||
		!pool.DeletionTimestamp.IsZero() || !claim.DeletionTimestamp.IsZero() {
		return false
	}

	owner := metav1.GetControllerOf(claim)

	return owner == nil || owner.UID != pool.UID && owner.Kind == kindRunnerPool && owner.Name == pool.Name
}

// adoptClaim makes the pool the owner of a restored claim. Otherwise the pool would not count its machine.
func (s *scope) adoptClaim(ctx context.Context, restored *v1alpha1.MachineClaim) (*v1alpha1.MachineClaim, error) {
	claim := restored.DeepCopy()
	claim.OwnerReferences = slices.DeleteFunc(claim.OwnerReferences, func(owner metav1.OwnerReference) bool {
		return owner.Controller != nil && *owner.Controller
	})

	if err := controllerutil.SetControllerReference(s.pool, claim, s.Client.Scheme()); err != nil {
		return nil, fmt.Errorf("set owner of claim %s: %w", claim.Name, err)
	}

	patch := client.MergeFromWithOptions(restored, client.MergeFromWithOptimisticLock{})
	if err := s.Client.Patch(ctx, claim, patch); err != nil {
		return nil, fmt.Errorf("adopt claim %s: %w", claim.Name, err)
	}

	return claim, nil
}

// describeRunners returns which jobs the runners take: their labels with those that the platform adds, and
// their queue. Labels are quoted, because they may contain spaces.
func describeRunners(runner workload.RunnerSpec) string {
	out := "the runners have no labels"
	if len(runner.Labels) > 0 {
		quoted := make([]string, 0, len(runner.Labels))
		for _, label := range runner.Labels {
			quoted = append(quoted, strconv.Quote(label))
		}

		out = "the runners have the labels " + strings.Join(quoted, ", ")
	}

	if runner.Queue != "" {
		out += ", and take only jobs of the queue " + strconv.Quote(runner.Queue)
	}

	return out
}

// removeTaken removes the given numbers of sizes, by their keys.
func removeTaken(sizes []demand.Size, taken map[string]int) []demand.Size {
	return slices.DeleteFunc(sizes, func(size demand.Size) bool {
		taken[size.Key()]--

		return taken[size.Key()] >= 0
	})
}

// findArrivals returns when the operator received the pool's jobs, see listArrivals. It returns none if the number of the
// pool's warm machines does not depend on that.
func (s *scope) findArrivals(ctx context.Context, pools []demand.Pool) ([]time.Time, error) {
	if warm := s.pool.Spec.Scaling.Warm; warm == nil || warm.MaxIdle == nil {
		return nil, nil
	}

	var jobs v1alpha1.RunnerJobList
	if err := s.Client.List(ctx, &jobs, client.InNamespace(s.pool.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list jobs: %w", err)
	}

	return listArrivals(jobs.Items, pools, s.pool.Name), nil
}

// listArrivals returns when the operator received the jobs of a pool for which warm machines are
// useful. A job counts for the same pool in all of its states.
func listArrivals(jobs []v1alpha1.RunnerJob, pools []demand.Pool, name string) []time.Time {
	var out []time.Time

	own := slices.IndexFunc(pools, func(p demand.Pool) bool { return p.Name == name })

	for i := range jobs {
		job := &jobs[i]
		if job.Spec.ReceivedAt == nil || job.Spec.State == v1alpha1.JobWaiting {
			continue
		}

		if own >= 0 {
			if size, _ := pools[own].ParseSize(job.Spec); size.Key() != "" {
				continue // warm machines never have this size
			}
		}

		pool := job.PoolName()
		if pool == "" {
			if match, ok := demand.Match(job.Spec, pools); ok {
				pool = match.Name
			}
		}

		if pool == name {
			out = append(out, job.Spec.ReceivedAt.Time)
		}
	}

	return out
}

// loadPools returns the pools of the namespace, and sets s.sources to the sources of the reconciled pool.
func (s *scope) loadPools(ctx context.Context) ([]demand.Pool, error) {
	var (
		pools     v1alpha1.RunnerPoolList
		templates v1alpha1.HypervisorMachineTemplateList
	)

	if err := s.Client.List(ctx, &pools, client.InNamespace(s.pool.Namespace)); err != nil {
		return nil, fmt.Errorf("list pools: %w", err)
	}

	if err := s.Client.List(ctx, &templates, client.InNamespace(s.pool.Namespace)); err != nil {
		return nil, fmt.Errorf("list templates: %w", err)
	}

	byName := make(demand.Templates, len(templates.Items))
	for i := range templates.Items {
		byName[templates.Items[i].Name] = &templates.Items[i]
	}

	if err := s.findSources(ctx, byName); err != nil {
		return nil, err
	}

	out := make([]demand.Pool, 0, len(pools.Items))

	for i := range pools.Items {
		pool := &pools.Items[i]
		if pool.DeletionTimestamp.IsZero() {
			out = append(out, s.Platforms.NewPool(pool, byName))
		}
	}

	return out, nil
}

// evaluateClaim returns the demand.Claim of a claim. byRunner holds the state of the job that each
// runner took.
func evaluateClaim(claim *v1alpha1.MachineClaim, byRunner map[string]v1alpha1.JobState) demand.Claim {
	out := demand.Claim{
		Name: claim.Name, CreatedAt: claim.CreationTimestamp.Time, State: demand.ClaimPending, Size: demand.SizeKey(claim.Spec.Size),
	}
	times := claim.Status.Times

	var job v1alpha1.JobState
	if info := claim.Status.BootstrapInfo; info != nil {
		job = byRunner[info.RunnerName]
		out.Bound = info.BoundJob != ""
	}

	switch {
	case !claim.DeletionTimestamp.IsZero(), times != nil && times.Ended != nil, job == v1alpha1.JobCompleted, isPoweringOff(claim):
		out.State = demand.ClaimFinishing
	case job == v1alpha1.JobRunning:
		out.State = demand.ClaimBusy
	case times != nil && times.JobStarted != nil, hasTakenJob(claim):
		out.State = demand.ClaimBusy
	case times != nil && times.Ready != nil:
		out.State, out.IdleSince = demand.ClaimIdle, times.Ready.Time
	case claim.Spec.Standby:
		out.State, out.Prepared = demand.ClaimStandby, times != nil && times.Cloned != nil
	case claim.Status.VMRef != nil:
		out.State = demand.ClaimBooting
	}

	return out
}

// hasTakenJob reports whether the machine itself reported that its runner took a job.
func hasTakenJob(claim *v1alpha1.MachineClaim) bool {
	info := claim.Status.BootstrapInfo
	if info == nil {
		return false
	}

	switch guest.Phase(info.GuestPhase) {
	case guest.PhaseRunning:
		return true
	case guest.PhaseFinished:
		return info.GuestReason == guest.ReasonJobDone || claim.Status.EndReason == guest.ReasonJobDone
	default:
		return false
	}
}

// isPoweringOff reports whether the machine itself reported that it powers off.
func isPoweringOff(claim *v1alpha1.MachineClaim) bool {
	info := claim.Status.BootstrapInfo

	return info != nil && guest.Phase(info.GuestPhase).Last()
}

// countFailures counts the machines that ended before they became ready, in a row. A machine that
// becomes ready resets the count. A machine on standby does not count, because it was never
// started. countFailures is pure, and counts each machine once by the time of its end.
func countFailures(status *v1alpha1.RunnerPoolStatus, claims []v1alpha1.MachineClaim) {
	var counted, ready time.Time
	if status.LastFailureTime != nil {
		// The field holds whole seconds. A machine that ended within the same second was counted.
		counted = status.LastFailureTime.Add(time.Second)
	}

	for i := range claims {
		if times := claims[i].Status.Times; times != nil && times.Ready != nil && times.Ready.After(ready) {
			ready = times.Ready.Time
		}
	}

	if ready.After(counted) {
		status.FailedClaims = 0
		counted = ready
	}

	for i := range claims {
		times := claims[i].Status.Times
		if times == nil || isExpectedEnd(&claims[i]) || times.Ready != nil || times.Ended == nil || !times.Ended.After(counted) {
			continue
		}

		status.FailedClaims++

		if status.LastFailureTime == nil || times.Ended.After(status.LastFailureTime.Time) {
			status.LastFailureTime = &metav1.Time{Time: times.Ended.Time}
			status.LastFailure = newMachineFailure(&claims[i])
		}
	}
}

// newMachineFailure returns why a machine failed: by the machine's own report, or else by the
// condition with the reason of the machine's end.
func newMachineFailure(claim *v1alpha1.MachineClaim) *v1alpha1.MachineFailure {
	out := &v1alpha1.MachineFailure{
		Claim: claim.Name, Reason: cmp.Or(claim.Status.EndReason, "Unknown"),
		Time: metav1.Time{Time: claim.Status.Times.Ended.Time},
	}
	if vm := claim.Status.VMRef; vm != nil {
		out.Node = vm.Node
	}

	if info := claim.Status.BootstrapInfo; info != nil && guest.Phase(info.GuestPhase) == guest.PhaseFailed {
		out.Reason, out.Message = cmp.Or(info.GuestReason, out.Reason), info.GuestMessage

		return out
	}

	for i := range claim.Status.Conditions {
		condition := &claim.Status.Conditions[i]
		if condition.Reason == out.Reason && condition.Message != "" {
			out.Message = condition.Message

			break
		}
	}

	return out
}

// isExpectedEnd reports whether the end of a machine is no failure of the machine: it was never
// started, or its job no longer needed it.
func isExpectedEnd(claim *v1alpha1.MachineClaim) bool {
	reason := claim.Status.EndReason

	return claim.Spec.Standby || reason == v1alpha1.EndReasonNoJob || reason == guest.ReasonJobGone
}
