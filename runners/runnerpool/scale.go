// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runnerpool

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/demand"
)

const (
	// defaultScaleDownDelay holds where a pool names none.
	defaultScaleDownDelay = 5 * time.Minute
	// createAtOnce and createPerPass bound the claims that one pass makes.
	createAtOnce  = 16
	createPerPass = 128
	// suffixLength is that of the random part of a claim's name.
	suffixLength = 5
)

// scale makes the machines that are missing and removes those that are too many.
func scale(ctx context.Context, s *scope) step.Result {
	decision := demand.Desired(s.input())
	s.pool.Status.DesiredReplicas = int32(decision.Desired) //nolint:gosec // at most 10000
	s.after = decision.After

	errs := []error{s.createMany(ctx, decision.Create)}

	for _, gone := range decision.Delete {
		errs = append(errs, s.remove(ctx, gone.Name, gone.Reason, gone.Message))
	}

	errs = append(errs, s.bury(ctx))

	if err := errors.Join(errs...); err != nil {
		return step.Fail(err)
	}

	if decision.Create > 0 {
		s.Recorder.Eventf(s.pool, nil, corev1.EventTypeNormal, decision.Reason, "Scale", "%s", decision.Message)
	}

	return step.Done().Saying(decision.Reason, decision.Message)
}

func (s *scope) input() demand.Input {
	spec, status := &s.pool.Spec, &s.pool.Status
	in := demand.Input{
		Min: int(spec.Scaling.MinReplicas), Max: int(spec.Scaling.MaxReplicas),
		Queued: s.seen.count.Queued, Claims: s.seen.states,
		Now: s.Clock.Now(), ScaleDownDelay: defaultScaleDownDelay,
		Failures: int(status.FailedClaims),
	}

	if spec.Scaling.ScaleDownDelay != nil {
		in.ScaleDownDelay = spec.Scaling.ScaleDownDelay.Duration
	}

	if status.LastFailureTime != nil {
		in.LastFailure = status.LastFailureTime.Time
	}

	if l := spec.Lifecycle; l != nil {
		if l.IdleTimeout != nil {
			in.IdleTimeout = l.IdleTimeout.Duration
		}

		if l.MaxLifetime != nil {
			in.MaxLifetime = l.MaxLifetime.Duration
		}
	}

	return in
}

// createMany makes so many claims, several at a time: a burst of jobs should wait for the
// hypervisor, and not for one write after the other. What a pass leaves over is the next
// one's, which the claims made bring about.
func (s *scope) createMany(ctx context.Context, wanted int) error {
	var group errgroup.Group

	group.SetLimit(createAtOnce)

	for range min(wanted, createPerPass) {
		group.Go(func() error { return s.create(ctx) })
	}

	return group.Wait() //nolint:wrapcheck // it is our own
}

// create makes one claim, with its finalizer from the first moment.
func (s *scope) create(ctx context.Context) error {
	claim := NewClaim(s.pool, s.template, s.pool.Name+"-"+rand.String(suffixLength))
	if err := controllerutil.SetControllerReference(s.pool, claim, s.Client.Scheme()); err != nil {
		return fmt.Errorf("set owner of claim %s: %w", claim.Name, err)
	}

	err := s.Client.Create(ctx, claim)
	if apierrors.IsAlreadyExists(err) {
		return nil // the next pass makes another name
	}

	if err != nil {
		return fmt.Errorf("create claim %s: %w", claim.Name, err)
	}

	s.expectations.expect(client.ObjectKeyFromObject(s.pool), claim.Name, s.Clock.Now())

	return nil
}

// NewClaim is the claim of one machine of the pool. It is pure.
func NewClaim(pool *v1alpha1.RunnerPool, template *v1alpha1.HypervisorMachineTemplate, name string) *v1alpha1.MachineClaim {
	claim := &v1alpha1.MachineClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pool.Namespace, Name: name,
			Labels:      map[string]string{},
			Annotations: map[string]string{},
			Finalizers:  []string{v1alpha1.FinalizerVMCleanup},
		},
		Spec: v1alpha1.MachineClaimSpec{
			TemplateRef:    pool.Spec.TemplateRef,
			RunnerPoolRef:  &v1alpha1.LocalObjectReference{Name: pool.Name},
			WorkloadConfig: *pool.Spec.Workload.DeepCopy(),
			Lifecycle:      pool.Spec.Lifecycle.DeepCopy(),
		},
	}
	claim.Spec.WorkloadConfig.Webhook = nil

	if meta := template.Spec.Metadata; meta != nil {
		maps.Copy(claim.Labels, meta.Labels)
		maps.Copy(claim.Annotations, meta.Annotations)
	}

	claim.Labels[v1alpha1.LabelRunnerPool] = pool.Name
	if claim.Labels[v1alpha1.LabelTemplate] == "" {
		claim.Labels[v1alpha1.LabelTemplate] = template.Name
	}

	return claim
}

// remove deletes one claim; its own steps see to the runner and the machine.
func (s *scope) remove(ctx context.Context, name, reason, message string) error {
	for i := range s.seen.claims {
		claim := &s.seen.claims[i]
		if claim.Name != name {
			continue
		}

		err := s.Client.Delete(ctx, claim, client.Preconditions{UID: &claim.UID})
		if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
			return fmt.Errorf("delete claim %s: %w", name, err)
		}

		s.Recorder.Eventf(claim, s.pool, corev1.EventTypeNormal, reason, "Scale", "%s", message)
	}

	return nil
}

// bury deletes claims that failed before they had a machine, once the pause after their
// failure is over: until then they can be looked at.
func (s *scope) bury(ctx context.Context) error {
	pause := demand.Backoff(int(s.pool.Status.FailedClaims))

	for i := range s.seen.claims {
		claim := &s.seen.claims[i]
		if claim.Status.Phase != v1alpha1.MachineClaimFailed || !claim.DeletionTimestamp.IsZero() {
			continue
		}

		left := pause
		if claim.Status.Times != nil && claim.Status.Times.Ended != nil {
			left = pause - s.Clock.Since(claim.Status.Times.Ended.Time)
		}

		if left > 0 {
			if s.after == 0 || left < s.after {
				s.after = left
			}

			continue
		}

		if err := s.remove(ctx, claim.Name, "FailedClaimRemoved", "it failed: "+claim.Status.EndReason); err != nil {
			return err
		}
	}

	return nil
}
