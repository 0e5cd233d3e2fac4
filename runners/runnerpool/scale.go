// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runnerpool

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
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

// scale starts and makes the machines that are missing and removes those that are too
// many.
func scale(ctx context.Context, s *scope) step.Result {
	in, wrong := s.input()
	decision := demand.Desired(in)
	missing := s.holdImages(&decision)
	s.pool.Status.DesiredReplicas = int32(decision.Desired) //nolint:gosec // at most 10000
	s.after = decision.After

	if in.Paused {
		return step.Steady(0, decision.Reason, decision.Message)
	}

	refused := s.holdBack(&decision)
	errs := []error{s.activate(ctx, decision.Activate)}

	err := s.createMany(ctx, s.wanted(&decision))
	if overQuota(err) {
		s.quotaBackoff.note(err.Error(), len(s.seen.claims), s.Clock.Now())
		refused = s.holdBack(&decision)
		err = nil
	}

	errs = append(errs, err)

	for _, gone := range decision.Delete {
		errs = append(errs, s.remove(ctx, gone.Name, gone.Reason, gone.Message))
	}

	errs = append(errs, s.deleteFailed(ctx))

	if err := errors.Join(errs...); err != nil {
		return step.Fail(err)
	}

	return s.say(decision, refused, missing, wrong)
}

// holdImages makes no machines of images that none can be made of now, and says why.
func (s *scope) holdImages(decision *demand.Decision) string {
	why := ""

	for _, size := range s.seen.sizes {
		at := slices.IndexFunc(s.sources, func(src source) bool { return src.name == size.Template })
		if at >= 0 && !s.sources[at].usable() && decision.Sized[size.Key()] > 0 {
			delete(decision.Sized, size.Key())
			why = "a job waits for its image: " + s.sources[at].why
		}
	}

	return why
}

// say puts what was decided into words. What a person has to fix comes first.
func (s *scope) say(decision demand.Decision, refused, missing string, wrong error) step.Result {
	if decision.Creates() || len(decision.Activate) > 0 {
		s.Recorder.Eventf(s.pool, nil, corev1.EventTypeNormal, decision.Reason, "Scale", "%s", decision.Message)
	}

	switch {
	case wrong != nil:
		return step.Stall("ScheduleInvalid", wrong.Error())
	case refused != "":
		return step.Wait(s.after, "QuotaExceeded", refused)
	case missing != "":
		return step.Wait(s.after, "TemplateNotReady", missing)
	case s.pool.Status.FailedClaims >= failing:
		return step.Wait(s.after, "MachinesFailing", s.whyFailing())
	default:
		result := step.Done().WithReason(decision.Reason, decision.Message)

		last := meta.FindStatusCondition(s.pool.Status.Conditions, conditionScaling)
		if last != nil && last.Status == metav1.ConditionTrue && last.Reason == result.Reason() {
			return result.Unhurried() // only its counts have changed
		}

		return result
	}
}

// failing so many machines in a row a pool is not ready: its jobs wait, though it goes on
// trying.
const failing = 3

func (s *scope) whyFailing() string {
	status := &s.pool.Status
	text := fmt.Sprintf("the last %d machines failed", status.FailedClaims)

	if last := status.LastFailure; last != nil {
		text += fmt.Sprintf(", MachineClaim %s last: %s", last.Claim, strings.TrimSuffix(last.Reason+": "+last.Message, ": "))
	}

	return text + ". One is tried at a time, with a growing pause"
}

// holdBack makes no claims while the namespace's quota is used up, and gives the API
// server's words about it.
func (s *scope) holdBack(decision *demand.Decision) string {
	left, message := s.quotaBackoff.left(len(s.seen.claims), s.Clock.Now())
	if left <= 0 || !decision.Creates() {
		return ""
	}

	decision.Create, decision.CreateStandby, decision.Sized = 0, 0, nil
	s.wakeIn(left)

	return message
}

// wakeIn has the next pass come within the time.
func (s *scope) wakeIn(left time.Duration) {
	if s.after == 0 || left < s.after {
		s.after = left
	}
}

// overQuota says whether the API server refused a claim because of a ResourceQuota: one
// that is used up, or one whose use has not been counted yet. It tells so in words only
// (k8s.io/apiserver, pkg/admission/plugin/resourcequota).
func overQuota(err error) bool {
	return err != nil && apierrors.IsForbidden(err) && quotaWords(err.Error())
}

func quotaWords(text string) bool {
	return strings.Contains(text, "exceeded quota") || strings.Contains(text, "status unknown for quota")
}

// input is what the decision is made upon. The error says which schedules can't be
// followed; the others are.
func (s *scope) input() (demand.Input, error) {
	spec, status, now := &s.pool.Spec, &s.pool.Status, s.Clock.Now()
	scheduled, boundary, wrong := demand.ScheduledMin(windows(spec.Scaling.Schedules), int(spec.Scaling.MaxReplicas), now)
	in := demand.Input{
		Min: max(int(spec.Scaling.MinReplicas), scheduled), Max: int(spec.Scaling.MaxReplicas),
		Queued: s.seen.count.Queued, Claims: s.seen.states, Paused: spec.Paused,
		Now: now, Boundary: boundary, ScaleDownDelay: defaultScaleDownDelay,
		Failures: int(status.FailedClaims),
	}

	for _, size := range s.seen.sizes {
		in.Sizes = append(in.Sizes, size.Key())
	}

	if warm := spec.Scaling.Warm; warm != nil {
		s.keepWarm(&in, warm)
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

	return in, wrong
}

// keepWarm adds the machines that are to be ready before there is a job.
func (s *scope) keepWarm(in *demand.Input, warm *v1alpha1.Warm) {
	var most *int

	if warm.MaxIdle != nil {
		n := int(*warm.MaxIdle)
		most = &n
	}

	startup := s.startups.median()

	var falls time.Time

	in.WarmStopped = int(warm.Stopped)
	in.WarmIdle, falls = demand.WarmIdle(int(warm.Idle), most, s.seen.arrivals, startup, in.Now)

	if !falls.IsZero() && (in.Boundary.IsZero() || falls.Before(in.Boundary)) {
		in.Boundary = falls
	}
}

func windows(schedules []v1alpha1.Schedule) []demand.Window {
	out := make([]demand.Window, 0, len(schedules))

	for _, schedule := range schedules {
		out = append(out, demand.Window{
			Name: schedule.Name, Start: schedule.Start, TimeZone: schedule.TimeZone,
			Duration: schedule.Duration.Duration, Min: int(schedule.MinReplicas),
		})
	}

	return out
}

// activate starts machines that are on standby. One that has gone meanwhile is missed by
// the next pass.
func (s *scope) activate(ctx context.Context, names []string) error {
	var errs []error

	for _, name := range names {
		at := slices.IndexFunc(s.seen.claims, func(c v1alpha1.MachineClaim) bool { return c.Name == name })
		if at < 0 {
			continue // made a moment ago, and not to be seen yet
		}

		claim := s.seen.claims[at].DeepCopy()
		before := claim.DeepCopy()
		claim.Spec.Standby = false

		err := s.Client.Patch(ctx, claim, client.MergeFrom(before))
		if client.IgnoreNotFound(err) != nil {
			errs = append(errs, fmt.Errorf("activate claim %s: %w", name, err))

			continue
		}

		s.Recorder.Eventf(claim, s.pool, corev1.EventTypeNormal, "Activated", "Scale", "it is needed: its machine is started")
	}

	return errors.Join(errs...)
}

// wanted is a machine to be made.
type wanted struct {
	from    *source
	standby bool
	size    demand.Size
}

// wanted lists the machines that a pass makes, of the templates that work. What it leaves over
// is the next one's, which the claims made bring about.
func (s *scope) wanted(decision *demand.Decision) []wanted {
	var out []wanted

	strategy := ""
	if s.pool.Spec.Placement != nil {
		strategy = s.pool.Spec.Placement.Strategy
	}

	add := func(n int, standby bool, size demand.Size) {
		n = min(n, createPerPass-len(out))

		for _, from := range assign(strategy, ofImage(s.sources, size.Template), n) {
			for i := range s.sources { // where the next ones count it
				if s.sources[i].name == from.name {
					s.sources[i].machines++
				}
			}

			out = append(out, wanted{from, standby, size})
		}
	}

	add(decision.Create, false, demand.Size{})

	left := maps.Clone(decision.Sized)

	for _, size := range s.seen.sizes {
		if left[size.Key()] > 0 {
			left[size.Key()]--
			add(1, false, size)
		}
	}

	add(decision.CreateStandby, true, demand.Size{})

	return out
}

// createMany makes the claims, several at a time: a burst of jobs should wait for the
// hypervisor, and not for one write after the other.
func (s *scope) createMany(ctx context.Context, all []wanted) error {
	var (
		group   errgroup.Group
		refused atomic.Bool
	)

	group.SetLimit(createAtOnce)

	for _, one := range all {
		group.Go(func() error {
			if refused.Load() {
				return nil // the others would be refused as well
			}

			err := s.create(ctx, one)
			if overQuota(err) {
				refused.Store(true)
			}

			return err
		})
	}

	return group.Wait()
}

// create makes one claim, with its finalizer from the first moment.
func (s *scope) create(ctx context.Context, one wanted) error {
	claim := newClaim(s.pool, one, s.pool.Name+"-"+rand.String(suffixLength))
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

	s.expectations.expect(claim.Name, expected{
		made: s.Clock.Now(), source: one.from.name, standby: one.standby, size: one.size.Key(),
	})

	return nil
}

// newClaim is the claim of one machine of the pool. It is pure.
func newClaim(pool *v1alpha1.RunnerPool, one wanted, name string) *v1alpha1.MachineClaim {
	from := one.from
	claim := &v1alpha1.MachineClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pool.Namespace, Name: name,
			Labels:      map[string]string{},
			Annotations: map[string]string{},
			Finalizers:  []string{v1alpha1.FinalizerVMCleanup},
		},
		Spec: v1alpha1.MachineClaimSpec{
			TemplateRef:    v1alpha1.LocalObjectReference{Name: from.name},
			RunnerPoolRef:  &v1alpha1.LocalObjectReference{Name: pool.Name},
			WorkloadConfig: *pool.Spec.Workload.DeepCopy(),
			Standby:        one.standby,
			Lifecycle:      pool.Spec.Lifecycle.DeepCopy(),
		},
	}
	claim.Spec.WorkloadConfig.Webhook = nil

	if one.size.Key() != "" {
		claim.Spec.Size = one.size.DeepCopy()
	}

	if pool.Spec.Placement != nil {
		claim.Spec.Placement = pool.Spec.Placement.Strategy
	}

	if given := from.template.Spec.Metadata; given != nil {
		maps.Copy(claim.Labels, given.Labels)
		maps.Copy(claim.Annotations, given.Annotations)
	}

	claim.Annotations[v1alpha1.AnnotationTemplateHash] = from.hash
	claim.Labels[v1alpha1.LabelRunnerPool] = pool.Name

	if claim.Labels[v1alpha1.LabelTemplate] == "" {
		claim.Labels[v1alpha1.LabelTemplate] = from.name
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

// deleteFailed deletes claims that failed before they had a machine, once the pause after their
// failure is over: until then they can be looked at.
func (s *scope) deleteFailed(ctx context.Context) error {
	pause := demand.Backoff(int(s.pool.Status.FailedClaims))

	for i := range s.seen.claims {
		claim := &s.seen.claims[i]
		kept := claim.Status.KeptUntil != nil // such a claim removes itself
		if claim.Status.Phase != v1alpha1.MachineClaimFailed || !claim.DeletionTimestamp.IsZero() || kept {
			continue
		}

		left := pause
		if claim.Status.Times != nil && claim.Status.Times.Ended != nil {
			left = pause - s.Clock.Since(claim.Status.Times.Ended.Time)
		}

		if left > 0 {
			s.wakeIn(left)

			continue
		}

		if err := s.remove(ctx, claim.Name, "FailedClaimRemoved", "it failed: "+claim.Status.EndReason); err != nil {
			return err
		}
	}

	return nil
}
