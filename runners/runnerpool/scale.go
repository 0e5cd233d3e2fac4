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
	// defaultScaleDownDelay applies to pools that set no delay.
	defaultScaleDownDelay = 5 * time.Minute
	// maxConcurrentCreates and maxCreatesPerReconcile limit the claims that one reconcile creates.
	maxConcurrentCreates   = 16
	maxCreatesPerReconcile = 128
	// suffixLength is the length of the random suffix of a claim's name.
	suffixLength = 5
)

// scale starts and creates the missing machines and deletes the surplus ones.
func scale(ctx context.Context, s *scope) step.Result {
	in, scheduleErr := s.newInput()
	decision := demand.Decide(in)
	imageMessage := s.dropUnavailableImages(&decision)
	s.pool.Status.DesiredReplicas = int32(decision.Desired) //nolint:gosec // at most 10000
	s.requeueAfter = decision.RequeueAfter

	if in.Paused {
		return step.WaitReady(0, decision.Reason, decision.Message)
	}

	quotaMessage := s.applyQuotaBackoff(&decision)
	errs := []error{s.activate(ctx, decision.Activate)}

	err := s.createClaims(ctx, s.planMachines(&decision))
	if isOverQuota(err) {
		s.quotaBackoff.record(err.Error(), len(s.view.claims), s.Clock.Now())
		quotaMessage = s.applyQuotaBackoff(&decision) // so that no event says that machines are created
		err = nil
	}

	errs = append(errs, err)

	for _, deletion := range decision.Delete {
		if claim := s.view.findClaim(deletion.Name); claim != nil {
			errs = append(errs, s.deleteClaim(ctx, claim, deletion.Reason, deletion.Message))
		}
	}

	errs = append(errs, s.deleteFailedClaims(ctx))

	if err := errors.Join(errs...); err != nil {
		return step.Fail(err)
	}

	return s.reportDecision(decision, quotaMessage, imageMessage, scheduleErr)
}

// dropUnavailableImages removes the creation of machines whose image has no usable template from
// the decision. It returns the reason, or "" if it removed nothing.
func (s *scope) dropUnavailableImages(decision *demand.Decision) string {
	message := ""

	for _, size := range s.view.sizes {
		index := slices.IndexFunc(s.sources, func(src source) bool { return src.name == size.Template })
		if index >= 0 && !s.sources[index].isUsable() && decision.CreateBySize[size.Key()] > 0 {
			delete(decision.CreateBySize, size.Key())
			message = "a job waits for its image: " + s.sources[index].unusableReason
		}
	}

	return message
}

// reportDecision emits an event if machines are created or started, and returns the result of the
// step. Causes that a person must fix take precedence.
func (s *scope) reportDecision(decision demand.Decision, quotaMessage, imageMessage string, scheduleErr error) step.Result {
	if decision.ShouldCreate() || len(decision.Activate) > 0 {
		s.Recorder.Eventf(s.pool, nil, corev1.EventTypeNormal, decision.Reason, "Scale", "%s", decision.Message)
	}

	switch {
	case scheduleErr != nil:
		return step.Stall("ScheduleInvalid", scheduleErr.Error())
	case quotaMessage != "":
		return step.Wait(s.requeueAfter, "QuotaExceeded", quotaMessage)
	case imageMessage != "":
		return step.Wait(s.requeueAfter, "TemplateNotReady", imageMessage)
	case s.pool.Status.FailedClaims >= failingThreshold:
		return step.Wait(s.requeueAfter, "MachinesFailing", s.failureMessage())
	default:
		result := step.Done().WithReason(decision.Reason, decision.Message)

		last := meta.FindStatusCondition(s.pool.Status.Conditions, conditionScaling)
		if last != nil && last.Status == metav1.ConditionTrue && last.Reason == result.Reason() {
			return result.DeferWrite() // only the counts in the message may have changed
		}

		return result
	}
}

// failingThreshold is the number of failures in a row after which a pool is not ready. Its jobs
// wait, and the pool continues to create machines one at a time.
const failingThreshold = 3

func (s *scope) failureMessage() string {
	status := &s.pool.Status
	text := fmt.Sprintf("the last %d machines failed", status.FailedClaims)

	if last := status.LastFailure; last != nil {
		text += fmt.Sprintf(", the last one of MachineClaim %s: %s",
			last.Claim, strings.TrimSuffix(last.Reason+": "+last.Message, ": "))
	}

	return text + ". The pool creates one machine at a time, with an increasing delay"
}

// applyQuotaBackoff removes the creation of machines from the decision while the namespace's quota
// is used up. It returns the API server's message, or "" if it removed nothing.
func (s *scope) applyQuotaBackoff(decision *demand.Decision) string {
	remaining, message := s.quotaBackoff.remaining(len(s.view.claims), s.Clock.Now())
	if remaining <= 0 || !decision.ShouldCreate() {
		return ""
	}

	decision.Create, decision.CreateStandby, decision.CreateBySize = 0, 0, nil
	s.requeueIn(remaining)

	return message
}

// requeueIn makes the next reconcile run after the delay, unless an earlier one is scheduled.
func (s *scope) requeueIn(remaining time.Duration) {
	s.requeueAfter = step.ChooseSooner(s.requeueAfter, remaining)
}

// isOverQuota reports whether the API server rejected a claim because of a ResourceQuota that is
// used up, or whose usage is not calculated yet. Only the text of the error tells
// (k8s.io/apiserver, pkg/admission/plugin/resourcequota).
func isOverQuota(err error) bool {
	return err != nil && apierrors.IsForbidden(err) && isQuotaMessage(err.Error())
}

func isQuotaMessage(text string) bool {
	return strings.Contains(text, "exceeded quota") || strings.Contains(text, "status unknown for quota")
}

// newInput returns the input of the decision. The error names the invalid schedules; the other
// schedules are used.
func (s *scope) newInput() (demand.Input, error) {
	spec, status, now := &s.pool.Spec, &s.pool.Status, s.Clock.Now()
	scheduled, boundary, scheduleErr := demand.ScheduledMin(newWindows(spec.Scaling.Schedules), int(spec.Scaling.MaxReplicas), now)
	in := demand.Input{
		Min: max(int(spec.Scaling.MinReplicas), scheduled), Max: int(spec.Scaling.MaxReplicas),
		Queued: s.view.count.Queued, Claims: s.view.states, Paused: spec.Paused,
		Now: now, Boundary: boundary, ScaleDownDelay: defaultScaleDownDelay,
		Failures: int(status.FailedClaims),
	}

	for _, size := range s.view.sizes {
		in.Sizes = append(in.Sizes, size.Key())
	}

	if warm := spec.Scaling.Warm; warm != nil {
		s.addWarm(&in, warm)
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

	return in, scheduleErr
}

// addWarm adds the numbers of warm machines, which are ready before a job comes, to the input.
func (s *scope) addWarm(in *demand.Input, warm *v1alpha1.Warm) {
	var maxIdle *int

	if warm.MaxIdle != nil {
		n := int(*warm.MaxIdle)
		maxIdle = &n
	}

	startup := s.startups.median()

	var decreasesAt time.Time

	in.WarmStopped = int(warm.Stopped)
	in.WarmIdle, decreasesAt = demand.WarmIdle(int(warm.Idle), maxIdle, s.view.arrivals, startup, in.Now)

	if !decreasesAt.IsZero() && (in.Boundary.IsZero() || decreasesAt.Before(in.Boundary)) {
		in.Boundary = decreasesAt
	}
}

func newWindows(schedules []v1alpha1.Schedule) []demand.Window {
	out := make([]demand.Window, 0, len(schedules))

	for _, schedule := range schedules {
		out = append(out, demand.Window{
			Name: schedule.Name, Start: schedule.Start, TimeZone: schedule.TimeZone,
			Duration: schedule.Duration.Duration, Min: int(schedule.MinReplicas),
		})
	}

	return out
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
		if client.IgnoreNotFound(err) != nil {
			errs = append(errs, fmt.Errorf("activate claim %s: %w", name, err))

			continue
		}

		s.Recorder.Eventf(claim, s.pool, corev1.EventTypeNormal, "Activated", "Scale", "the pool needs the machine and starts it")
	}

	return errors.Join(errs...)
}

// machineRequest is a machine to create.
type machineRequest struct {
	source  *source
	standby bool
	size    demand.Size
}

// planMachines returns the machines that this reconcile creates, from the usable templates, at most
// maxCreatesPerReconcile. The new claims trigger the next reconcile, which creates the rest.
func (s *scope) planMachines(decision *demand.Decision) []machineRequest {
	var out []machineRequest

	strategy := ""
	if s.pool.Spec.Placement != nil {
		strategy = s.pool.Spec.Placement.Strategy
	}

	add := func(n int, standby bool, size demand.Size) {
		n = min(n, maxCreatesPerReconcile-len(out))

		for _, source := range chooseSources(strategy, filterByImage(s.sources, size.Template), n) {
			for i := range s.sources { // the next choice counts the machine
				if s.sources[i].name == source.name {
					s.sources[i].machines++
				}
			}

			out = append(out, machineRequest{source, standby, size})
		}
	}

	add(decision.Create, false, demand.Size{})

	remaining := maps.Clone(decision.CreateBySize)

	for _, size := range s.view.sizes {
		if remaining[size.Key()] > 0 {
			remaining[size.Key()]--
			add(1, false, size)
		}
	}

	add(decision.CreateStandby, true, demand.Size{})

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
			if isOverQuota(err) {
				quotaExceeded.Store(true)
			}

			return err
		})
	}

	return group.Wait()
}

// createClaim creates one claim, with its finalizer from the start.
func (s *scope) createClaim(ctx context.Context, request machineRequest) error {
	claim := newClaim(s.pool, request, s.pool.Name+"-"+rand.String(suffixLength))
	if err := controllerutil.SetControllerReference(s.pool, claim, s.Client.Scheme()); err != nil {
		return fmt.Errorf("set owner of claim %s: %w", claim.Name, err)
	}

	err := s.Client.Create(ctx, claim)
	if apierrors.IsAlreadyExists(err) {
		return nil // the next reconcile uses another name
	}

	if err != nil {
		return fmt.Errorf("create claim %s: %w", claim.Name, err)
	}

	s.expectations.expect(claim.Name, expectedClaim{
		createdAt: s.Clock.Now(), source: request.source.name, standby: request.standby, size: request.size.Key(),
	})

	return nil
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
			Standby:        request.standby,
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

// deleteClaim deletes one claim. The claim's own steps then remove the runner and the VM.
func (s *scope) deleteClaim(ctx context.Context, claim *v1alpha1.MachineClaim, reason, message string) error {
	err := s.Client.Delete(ctx, claim, client.Preconditions{UID: &claim.UID})
	if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
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
		kept := claim.Status.KeptUntil != nil // the claim's own reconciler deletes such a claim
		if claim.Status.Phase != v1alpha1.MachineClaimFailed || !claim.DeletionTimestamp.IsZero() || kept {
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
