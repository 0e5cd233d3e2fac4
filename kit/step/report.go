// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package step

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Types of the conditions that every object has in addition to those of its steps.
const (
	// Ready summarizes the list. It is True if every step is done or the run stopped at WaitReady.
	Ready = "Ready"
	// Reconciling is present, and True, if the last run waits or failed.
	Reconciling = "Reconciling"
	// Stalled is present, and True, if a person has to act.
	Stalled = "Stalled"
)

// reasonPending is the reason of a condition whose step was never reached.
const reasonPending = "Pending"

// report sets the conditions of one run in the object.
type report struct {
	obj Object
	now metav1.Time
	// serverConditions returns the conditions that the API server has.
	serverConditions func() []metav1.Condition
}

// setStep sets the condition of one step that has run, and the additional conditions of its result.
func (p *report) setStep(condition string, result Result) {
	status := metav1.ConditionFalse
	if result.IsDone() {
		status = metav1.ConditionTrue
	}

	if condition != "" {
		p.set(condition, status, result.reason, result.message)
	}

	for _, extra := range result.conditions {
		p.set(extra.Type, extra.Status, extra.Reason, extra.Message)
	}
}

// setPending sets the condition of a step that was not reached to Unknown. If the condition exists, it
// stays as it is.
func (p *report) setPending(condition string) {
	if condition == "" || meta.FindStatusCondition(*p.obj.StatusConditions(), condition) != nil {
		return
	}

	p.set(condition, metav1.ConditionUnknown, reasonPending, "an earlier step is not done")
}

// setSummary sets Ready, Reconciling and Stalled, and the observed generation.
func (p *report) setSummary(last Result) {
	isDeleting := !p.obj.GetDeletionTimestamp().IsZero()

	switch {
	case last.IsDone() && isDeleting:
		p.set(Ready, metav1.ConditionFalse, "Deleted", "cleanup is complete")
		p.remove(Reconciling)
		p.remove(Stalled)
	case last.IsDone():
		p.set(Ready, metav1.ConditionTrue, "Ready", "")
		p.remove(Reconciling)
		p.remove(Stalled)
	case last.outcome == outcomeWaitReady && !isDeleting:
		p.set(Ready, metav1.ConditionTrue, last.reason, last.message)
		p.remove(Reconciling)
		p.remove(Stalled)
	case last.outcome == outcomeStall:
		p.set(Ready, metav1.ConditionFalse, last.reason, last.message)
		p.set(Stalled, metav1.ConditionTrue, last.reason, last.message)
		p.remove(Reconciling)
	default:
		p.set(Ready, metav1.ConditionFalse, last.reason, last.message)
		p.set(Reconciling, metav1.ConditionTrue, last.reason, last.message)
		p.remove(Stalled)
	}

	if observer, ok := p.obj.(interface{ SetObservedGeneration(generation int64) }); ok {
		observer.SetObservedGeneration(p.obj.GetGeneration())
	}
}

// set sets one condition. Its lastTransitionTime changes only if its status differs from the status that
// the API server has. Changes in runs whose writes were deferred do not count.
func (p *report) set(condition string, status metav1.ConditionStatus, reason, message string) {
	since := p.now
	if stored := meta.FindStatusCondition(p.serverConditions(), condition); stored != nil && stored.Status == status {
		since = stored.LastTransitionTime
	}

	meta.SetStatusCondition(p.obj.StatusConditions(), metav1.Condition{
		Type:               condition,
		Status:             status,
		ObservedGeneration: p.obj.GetGeneration(),
		LastTransitionTime: since,
		Reason:             sanitizeReason(reason),
		Message:            sanitizeMessage(message),
	})
}

func (p *report) remove(condition string) {
	meta.RemoveStatusCondition(p.obj.StatusConditions(), condition)
}
