// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package step

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Conditions that Run writes beside those in the list.
const (
	// Ready sums up the list: True when every step is done.
	Ready = "Ready"
	// Reconciling is present, and True, while the list waits or failed.
	Reconciling = "Reconciling"
	// Stalled is present, and True, while a person has to act.
	Stalled = "Stalled"
)

// reasonPending is that of a condition whose step was not reached yet.
const reasonPending = "Pending"

// report writes the conditions of one run into the object.
type report struct {
	obj Object
	now metav1.Time
	// server gives the conditions that the server has.
	server func() []metav1.Condition
}

// step reports one step that was run, with what it had to say beside.
func (p *report) step(condition string, result Result) {
	status := metav1.ConditionFalse
	if result.IsDone() {
		status = metav1.ConditionTrue
	}

	if condition != "" {
		p.set(condition, status, result.reason, result.message)
	}

	for _, also := range result.also {
		p.set(also.Type, also.Status, also.Reason, also.Message)
	}
}

// pending reports a step that was not reached: what was said of it earlier stays.
func (p *report) pending(condition string) {
	if condition == "" || meta.FindStatusCondition(*p.obj.StatusConditions(), condition) != nil {
		return
	}

	p.set(condition, metav1.ConditionUnknown, reasonPending, "an earlier step is not done")
}

// summary writes Ready, Reconciling and Stalled, and the observed generation.
func (p *report) summary(last Result) {
	deleting := !p.obj.GetDeletionTimestamp().IsZero()

	switch {
	case last.IsDone() && deleting:
		p.set(Ready, metav1.ConditionFalse, "Deleted", "nothing is left to clean up")
		p.drop(Reconciling)
		p.drop(Stalled)
	case last.IsDone():
		p.set(Ready, metav1.ConditionTrue, "Ready", "")
		p.drop(Reconciling)
		p.drop(Stalled)
	case last.outcome == outcomeRest && !deleting:
		p.set(Ready, metav1.ConditionTrue, last.reason, last.message)
		p.drop(Reconciling)
		p.drop(Stalled)
	case last.outcome == outcomeStall:
		p.set(Ready, metav1.ConditionFalse, last.reason, last.message)
		p.set(Stalled, metav1.ConditionTrue, last.reason, last.message)
		p.drop(Reconciling)
	default:
		p.set(Ready, metav1.ConditionFalse, last.reason, last.message)
		p.set(Reconciling, metav1.ConditionTrue, last.reason, last.message)
		p.drop(Stalled)
	}

	if observer, ok := p.obj.(interface{ SetObservedGeneration(generation int64) }); ok {
		observer.SetObservedGeneration(p.obj.GetGeneration())
	}
}

// set writes one condition; its time changes only with its status. One that is back at what the
// server has, after passes that were held in memory, has not changed.
func (p *report) set(condition string, status metav1.ConditionStatus, reason, message string) {
	since := p.now
	if was := meta.FindStatusCondition(p.server(), condition); was != nil && was.Status == status {
		since = was.LastTransitionTime
	}

	meta.SetStatusCondition(p.obj.StatusConditions(), metav1.Condition{
		Type:               condition,
		Status:             status,
		ObservedGeneration: p.obj.GetGeneration(),
		LastTransitionTime: since,
		Reason:             camel(reason),
		Message:            trim(message),
	})
}

func (p *report) drop(condition string) {
	meta.RemoveStatusCondition(p.obj.StatusConditions(), condition)
}
