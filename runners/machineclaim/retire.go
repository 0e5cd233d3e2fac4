// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// jobEndTimeout is how long the claim of a stopped machine waits for the end of its job. Usually the CI platform reports the
// end at the same time, and then the claim's status need not have it.
const jobEndTimeout = 2 * time.Second

// retire deletes a claim whose machine has run.
func retire(ctx context.Context, s *scope) step.Result {
	const reason = "Retiring"

	message := "the machine has ended: " + s.claim.Status.EndReason
	remaining := jobEndTimeout - s.elapsedSince(s.times().Stopped)

	if remaining > 0 && s.claim.Status.EndReason == guest.ReasonJobDone && s.findSavedStatus(ctx) != nil && !s.isEndRecorded(ctx) {
		return step.Wait(remaining, reason, message).DeferWriteAtEnd()
	}

	return s.deleteClaim(ctx, reason, message)
}

// deleteClaim deletes the claim, unless its failed machine must be kept. Before that, it writes the status with
// the reason, which another process would otherwise not know. The write is not needed if isEndRecorded.
func (s *scope) deleteClaim(ctx context.Context, reason, message string) step.Result {
	if result := s.keepFailed(ctx); !result.IsDone() {
		return result
	}

	result, isRecorded := step.Wait(0, reason, message), s.isEndRecorded(ctx)
	if isRecorded {
		result = result.DeferWriteAtEnd()
	}

	if s.retired.has(s.claim) {
		return result // the claim is deleted, but the cache does not show the deletion yet
	}

	if !isRecorded {
		if err := step.SaveStatusWithResult(ctx, result); err != nil {
			return step.Fail(err)
		}
	}

	err := s.Client.Delete(ctx, s.claim.DeepCopy(), client.Preconditions{UID: &s.claim.UID},
		client.PropagationPolicy(metav1.DeletePropagationBackground))
	if client.IgnoreNotFound(err) != nil {
		return step.Fail(fmt.Errorf("delete claim %s: %w", client.ObjectKeyFromObject(s.claim), err))
	}

	s.retired.add(s.claim)

	return result
}

// isEndRecorded reports whether the end of the machine need not be written to the claim's status: the job has ended
// according to its RunnerJob or to the report of the machine that the status has. The next process and the pool find the end
// there. The rest of the deletion then needs no write of the status, unless it takes long.
func (s *scope) isEndRecorded(ctx context.Context) bool {
	saved := s.findSavedStatus(ctx)
	if saved == nil || s.claim.Status.EndReason != guest.ReasonJobDone {
		return false
	}

	return hasReportedJobDone(saved.BootstrapInfo) || s.hasCompletedJob(ctx)
}

// hasReportedJobDone reports whether the machine has reported that its job is done.
func hasReportedJobDone(info *v1alpha1.BootstrapInfo) bool {
	return guest.Phase(info.GuestPhase) == guest.PhaseFinished && endReasonOf(info) == guest.ReasonJobDone
}

// isReadyRecorded reports whether the API server has the time at which the runner of a pool's machine was online.
func (s *scope) isReadyRecorded(ctx context.Context) bool {
	saved := s.findSavedStatus(ctx)

	return saved != nil && saved.Times != nil && saved.Times.Ready != nil
}

// findSavedStatus returns the status of a pool's machine as the API server has it. It returns nil for a machine without a
// pool, and for one that no runner is recorded for.
func (s *scope) findSavedStatus(ctx context.Context) *v1alpha1.MachineClaimStatus {
	saved, ok := step.SavedObject(ctx).(*v1alpha1.MachineClaim)
	if !ok || s.claim.PoolName() == "" || saved.Status.BootstrapInfo == nil {
		return nil
	}

	return &saved.Status
}

// hasCompletedJob reports whether the job that the claim's runner took is completed.
func (s *scope) hasCompletedJob(ctx context.Context) bool {
	info := s.claim.Status.BootstrapInfo
	if info == nil || info.Job == "" {
		return false
	}

	var job v1alpha1.RunnerJob

	err := s.Client.Get(ctx, types.NamespacedName{Namespace: s.claim.Namespace, Name: info.Job}, &job)

	return err == nil && job.Spec.State == v1alpha1.JobCompleted && job.Spec.RunnerName == info.RunnerName
}

// claimSet is a set of claims. It is safe for concurrent use. The zero value is ready to use.
type claimSet struct {
	mu     sync.Mutex
	claims map[types.NamespacedName]types.UID
}

func (r *claimSet) add(claim *v1alpha1.MachineClaim) {
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.claims == nil {
		r.claims = map[types.NamespacedName]types.UID{}
	}

	r.claims[client.ObjectKeyFromObject(claim)] = claim.UID
}

func (r *claimSet) has(claim *v1alpha1.MachineClaim) bool {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.claims[client.ObjectKeyFromObject(claim)] == claim.UID
}

func (r *claimSet) forget(name types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()

	delete(r.claims, name)
}
