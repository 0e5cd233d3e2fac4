// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runnerpool

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/demand"
)

// view is what one pass sees of a pool.
type view struct {
	claims []v1alpha1.MachineClaim
	states []demand.Claim
	count  demand.Count
	// sizes of the queued jobs, in their turn.
	sizes []demand.Size
	// arrivals are when the pool's jobs were heard of.
	arrivals []time.Time
}

// observe counts what is there into the status.
func observe(ctx context.Context, s *scope) step.Result {
	begun := s.Clock.Now()
	seen, err := s.see(ctx)
	s.rest.looked(begun, s.Clock.Now())

	if err != nil {
		return step.Fail(err)
	}

	s.seen = seen
	status := &s.pool.Status
	status.Replicas, status.ReadyReplicas, status.BusyReplicas, status.StandbyReplicas = 0, 0, 0, 0
	status.QueuedJobs, status.RunningJobs = int32(seen.count.Queued), int32(seen.count.Running) //nolint:gosec // far below 2^31
	status.Selector = labels.Set{v1alpha1.LabelRunnerPool: s.pool.Name}.String()

	for _, claim := range seen.states {
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

	countFailures(status, seen.claims)

	return s.withSources(step.Done())
}

func (s *scope) see(ctx context.Context) (*view, error) {
	var (
		claims v1alpha1.MachineClaimList
		jobs   v1alpha1.RunnerJobList
	)

	// What is read belongs to the cache and is not changed: a pass over a thousand jobs would
	// else copy them all.
	namespace := client.InNamespace(s.pool.Namespace)
	if err := s.Client.List(ctx, &claims, namespace, client.UnsafeDisableDeepCopy,
		client.MatchingLabels{v1alpha1.LabelRunnerPool: s.pool.Name}); err != nil {
		return nil, fmt.Errorf("list machine claims of pool %s: %w", s.pool.Name, err)
	}

	if err := s.Client.List(ctx, &jobs, namespace, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list jobs: %w", err)
	}

	pools, err := s.pools(ctx)
	if err != nil {
		return nil, err
	}

	key, now := client.ObjectKeyFromObject(s.pool), s.Clock.Now()
	out := &view{count: demand.Demand(jobs.Items, pools)[key], arrivals: arrivals(jobs.Items, pools, s.pool.Name)}
	byRunner := make(map[string]v1alpha1.JobState, len(jobs.Items))

	for i := range jobs.Items {
		if job := &jobs.Items[i].Spec; job.RunnerName != "" {
			byRunner[job.RunnerName] = job.State
		}
	}

	for i := range claims.Items {
		claim := &claims.Items[i]
		if metav1.IsControlledBy(claim, s.pool) {
			out.claims = append(out.claims, *claim)
			out.states = append(out.states, stateOf(claim, byRunner))
		}
	}

	unseen, bySource, err := s.expectations.unseen(ctx, s.Live, s.pool.Namespace, out.claims, now)
	if err != nil {
		return nil, err
	}

	s.fullClusters.note(out.claims, now)
	s.startups.note(out.claims)
	s.weigh(out, bySource)

	out.states = append(out.states, unseen...)
	out.sizes = waiting(demand.Asked(jobs.Items, pools, key), s.unconfirmedStarts.count(out.claims, byRunner, now))
	out.count.Queued = len(out.sizes)

	return out, nil
}

// waiting takes so many of the sizes away, by their keys.
func waiting(sizes []demand.Size, taken map[string]int) []demand.Size {
	return slices.DeleteFunc(sizes, func(size demand.Size) bool {
		taken[size.Key()]--

		return taken[size.Key()] >= 0
	})
}

// weigh counts the machines of each template, and judges each machine by what has become
// of its own.
func (s *scope) weigh(seen *view, unseen map[string]int) {
	full := s.fullClusters.full(s.Clock.Now())

	for i := range s.sources {
		s.sources[i].full = full[s.sources[i].name]
		s.sources[i].machines = unseen[s.sources[i].name]
	}

	elsewhere := slices.ContainsFunc(s.sources, func(src source) bool { return src.usable() && !src.full && !src.onRequest })

	for i := range seen.claims {
		state := &seen.states[i]

		at := slices.IndexFunc(s.sources, func(src source) bool { return src.name == seen.claims[i].Spec.TemplateRef.Name })
		if at < 0 {
			state.Outdated = true

			continue
		}

		if state.State != demand.ClaimFinishing {
			s.sources[at].machines++
		}

		state.Outdated = s.sources[at].outdates(&seen.claims[i])
		state.Stuck = elsewhere && !s.sources[at].onRequest && waitsForRoom(&seen.claims[i]) || activatedWithoutRoom(&seen.claims[i])
	}
}

// arrivals gives when the jobs of a pool were heard of that warm machines are for. Which pool a
// job is counted for does not change with what has become of it.
func arrivals(jobs []v1alpha1.RunnerJob, pools []demand.Pool, name string) []time.Time {
	var out []time.Time

	own := slices.IndexFunc(pools, func(p demand.Pool) bool { return p.Name == name })

	for i := range jobs {
		job := &jobs[i]
		if job.Spec.ReceivedAt == nil || job.Spec.State == v1alpha1.JobWaiting {
			continue
		}

		if own >= 0 {
			if size, _ := pools[own].Size(job.Spec); size.Key() != "" {
				continue // no warm machine is of its size
			}
		}

		pool := job.Status.Pool
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

// pools reads what the namespace's pools take.
func (s *scope) pools(ctx context.Context) ([]demand.Pool, error) {
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
			out = append(out, s.Platforms.PoolOf(pool, byName))
		}
	}

	return out, nil
}

// stateOf judges a claim's machine for scaling. byRunner holds the state of the job that
// each runner took.
func stateOf(claim *v1alpha1.MachineClaim, byRunner map[string]v1alpha1.JobState) demand.Claim {
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
	case !claim.DeletionTimestamp.IsZero(), times != nil && times.Ended != nil, job == v1alpha1.JobCompleted, isDone(claim):
		out.State = demand.ClaimFinishing
	case job == v1alpha1.JobRunning:
		out.State = demand.ClaimBusy
	case times != nil && times.JobStarted != nil, tookJob(claim):
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

// tookJob says whether the machine itself has said that its runner took a job.
func tookJob(claim *v1alpha1.MachineClaim) bool {
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

// isDone says whether the machine itself has said that it powers off.
func isDone(claim *v1alpha1.MachineClaim) bool {
	info := claim.Status.BootstrapInfo

	return info != nil && guest.Phase(info.GuestPhase).Last()
}

// countFailures counts the machines that ended before they were of any use, in a row:
// the first that gets ready begins the count anew. What is on standby was never tried. It
// is pure, and counts each machine once, by the time of its end.
func countFailures(status *v1alpha1.RunnerPoolStatus, claims []v1alpha1.MachineClaim) {
	var counted, ready time.Time
	if status.LastFailureTime != nil {
		// The field holds whole seconds: what ended in the same one was counted.
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
		if times == nil || blameless(&claims[i]) || times.Ready != nil || times.Ended == nil || !times.Ended.After(counted) {
			continue
		}

		status.FailedClaims++

		if status.LastFailureTime == nil || times.Ended.After(status.LastFailureTime.Time) {
			status.LastFailureTime = &metav1.Time{Time: times.Ended.Time}
			status.LastFailure = failureOf(&claims[i])
		}
	}
}

// failureOf says why a machine failed, in the words of whoever knows best: of the machine
// itself, else of the condition that it did not get beyond.
func failureOf(claim *v1alpha1.MachineClaim) *v1alpha1.MachineFailure {
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

// blameless says of a machine whose life is over that this is no failure of its: it was
// never started, or its job went away.
func blameless(claim *v1alpha1.MachineClaim) bool {
	reason := claim.Status.EndReason

	return claim.Spec.Standby || reason == v1alpha1.EndReasonNoJob || reason == guest.ReasonJobGone
}
