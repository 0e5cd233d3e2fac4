// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runnerpool

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/runners/demand"
)

const (
	// maxConcurrentCreates and maxCreatesPerReconcile limit the claims that one reconcile creates.
	maxConcurrentCreates   = 16
	maxCreatesPerReconcile = 128
	// suffixLength is the length of the random suffix of a claim's name.
	suffixLength = 5
)

// machineRequest is a machine to create.
type machineRequest struct {
	source    *source
	isStandby bool
	size      demand.Size
}

// planMachines returns the machines that this reconcile creates, from the usable templates, at most
// maxCreatesPerReconcile. The new claims trigger the next reconcile, which creates the rest.
func (s *scope) planMachines(decision *demand.Decision) []machineRequest {
	var out []machineRequest

	strategy := ""
	if s.pool.Spec.Placement != nil {
		strategy = s.pool.Spec.Placement.Strategy
	}

	add := func(n int, isStandby bool, size demand.Size) {
		n = min(n, maxCreatesPerReconcile-len(out))

		for _, source := range chooseSources(strategy, filterBySize(filterByImage(s.sources, size.Template), &size.MachineSize), n) {
			for i := range s.sources { // the next choice counts the machine
				if s.sources[i].name == source.name {
					s.sources[i].machines++
				}
			}

			out = append(out, machineRequest{source, isStandby, size})
		}
	}

	const started, onStandby = false, true

	add(decision.Create, started, demand.Size{})

	remaining := maps.Clone(decision.CreateBySize)

	for _, size := range s.view.sizes {
		if remaining[size.Key()] > 0 {
			remaining[size.Key()]--
			add(1, started, size)
		}
	}

	add(decision.CreateStandby, onStandby, demand.Size{})

	return out
}

// createClaims creates the claims, several at a time, so that a burst of jobs does not wait for one
// write after the other.
func (s *scope) createClaims(ctx context.Context, all []machineRequest) error {
	var (
		group         errgroup.Group
		quotaExceeded atomic.Bool
	)

	group.SetLimit(maxConcurrentCreates)

	for _, request := range all {
		group.Go(func() error {
			if quotaExceeded.Load() {
				return nil // the quota would reject the others, too
			}

			err := s.createClaim(ctx, request)
			if errclass.IsOverQuota(err) {
				quotaExceeded.Store(true)
			}

			return err
		})
	}

	return group.Wait()
}

// createClaim creates one claim, with its finalizer from the start. The claim is expected before the call, because an
// overloaded API server may create it and respond with an error nevertheless. Otherwise the next reconcile would create
// a second claim for the same job.
func (s *scope) createClaim(ctx context.Context, request machineRequest) error {
	claim := newClaim(s.pool, request, s.pool.Name+"-"+rand.String(suffixLength))
	if err := controllerutil.SetControllerReference(s.pool, claim, s.Client.Scheme()); err != nil {
		return fmt.Errorf("set owner of claim %s: %w", claim.Name, err)
	}

	s.expectations.expect(claim.Name, expectedClaim{
		createdAt: s.Clock.Now(), source: request.source.name, isStandby: request.isStandby, size: request.size.Key(),
	})

	err := s.Client.Create(ctx, claim)

	switch {
	case err == nil:
		return nil
	case apierrors.IsAlreadyExists(err):
		// The client repeats a request after some errors, so the first attempt may have created the claim. If the claim
		// belongs to somebody else, listNotCached forgets it, and a later reconcile uses another name.
		s.expectations.markUncertain(claim.Name)

		return nil
	case isRejected(err):
		s.expectations.forget(claim.Name)
	default:
		s.expectations.markUncertain(claim.Name)
	}

	return fmt.Errorf("create claim %s: %w", claim.Name, err)
}

// isRejected reports whether it is certain that the API server has not created an object. After a timeout, an internal error
// or a broken connection, the API server may have created it.
func isRejected(err error) bool {
	known, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok {
		return false
	}

	// The API server calls webhooks before it stores an object. Only the text distinguishes this internal error from
	// others (k8s.io/apiserver, pkg/util/webhook).
	if apierrors.IsInternalError(err) && strings.Contains(err.Error(), "failed calling webhook") {
		return true
	}

	code := known.ErrStatus.Code

	return code >= http.StatusBadRequest && code < http.StatusInternalServerError && code != http.StatusRequestTimeout
}

// newClaim returns the claim of one machine of the pool. It is pure.
func newClaim(pool *v1alpha1.RunnerPool, request machineRequest, name string) *v1alpha1.MachineClaim {
	source := request.source
	claim := &v1alpha1.MachineClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pool.Namespace, Name: name,
			Labels:      map[string]string{},
			Annotations: map[string]string{},
			Finalizers:  []string{v1alpha1.FinalizerVMCleanup},
		},
		Spec: v1alpha1.MachineClaimSpec{
			TemplateRef:    v1alpha1.LocalObjectReference{Name: source.name},
			RunnerPoolRef:  &v1alpha1.LocalObjectReference{Name: pool.Name},
			WorkloadConfig: *pool.Spec.Workload.DeepCopy(),
			Standby:        request.isStandby,
			Lifecycle:      pool.Spec.Lifecycle.DeepCopy(),
		},
	}
	claim.Spec.WorkloadConfig.Webhook = nil

	if request.size.Key() != "" {
		claim.Spec.Size = request.size.DeepCopy()
	}

	if pool.Spec.Placement != nil {
		claim.Spec.Placement = pool.Spec.Placement.Strategy
	}

	if metadata := source.template.Spec.Metadata; metadata != nil {
		maps.Copy(claim.Labels, metadata.Labels)
		maps.Copy(claim.Annotations, metadata.Annotations)
	}

	claim.Annotations[v1alpha1.AnnotationTemplateHash] = source.hash
	claim.Labels[v1alpha1.LabelRunnerPool] = pool.Name

	if claim.Labels[v1alpha1.LabelTemplate] == "" {
		claim.Labels[v1alpha1.LabelTemplate] = source.name
	}

	return claim
}

// activate starts machines that are on standby. If a claim was deleted in the meantime, the next
// reconcile replaces the machine.
func (s *scope) activate(ctx context.Context, names []string) error {
	var errs []error

	for _, name := range names {
		found := s.view.findClaim(name)
		if found == nil {
			continue
		}

		claim := found.DeepCopy()
		previous := claim.DeepCopy()
		claim.Spec.Standby = false

		err := s.Client.Patch(ctx, claim, client.MergeFrom(previous))

		switch {
		case err == nil:
			s.Recorder.Eventf(claim, s.pool, corev1.EventTypeNormal, "Activated", "Scale", "the pool needs the machine and starts it")
		case !apierrors.IsNotFound(err):
			errs = append(errs, fmt.Errorf("activate claim %s: %w", name, err))
		}
	}

	return errors.Join(errs...)
}

// deleteClaim deletes one claim. The claim's own steps then remove the runner and the VM. It emits no event for a claim
// that others have deleted.
func (s *scope) deleteClaim(ctx context.Context, claim *v1alpha1.MachineClaim, reason, message string) error {
	err := s.Client.Delete(ctx, claim, client.Preconditions{UID: &claim.UID})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}

	if err != nil {
		return fmt.Errorf("delete claim %s: %w", claim.Name, err)
	}

	s.Recorder.Eventf(claim, s.pool, corev1.EventTypeNormal, reason, "Scale", "%s", message)

	return nil
}

// deleteFailedClaims deletes the claims that failed before they had a machine, once the back-off
// after their failure is over. Until then a person can inspect them.
func (s *scope) deleteFailedClaims(ctx context.Context) error {
	backoff := demand.Backoff(int(s.pool.Status.FailedClaims))

	for i := range s.view.claims {
		claim := &s.view.claims[i]
		isKept := claim.Status.KeptUntil != nil // the claim's own reconciler deletes such a claim
		if claim.Status.Phase != v1alpha1.MachineClaimFailed || !claim.DeletionTimestamp.IsZero() || isKept {
			continue
		}

		remaining := backoff
		if claim.Status.Times != nil && claim.Status.Times.Ended != nil {
			remaining = backoff - s.Clock.Since(claim.Status.Times.Ended.Time)
		}

		if remaining > 0 {
			s.requeueIn(remaining)

			continue
		}

		if err := s.deleteClaim(ctx, claim, "FailedClaimRemoved", "the machine failed: "+claim.Status.EndReason); err != nil {
			return err
		}
	}

	return nil
}
