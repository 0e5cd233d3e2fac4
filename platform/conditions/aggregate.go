// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package conditions

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/entity"
)

// Aggregate returns the conditions that do not come from rules: Reconciled, LastKnownReconciled,
// then <Adapter>Successful for each required adapter that has reported. The adapters are in the
// order of Input.Required.
func Aggregate(in Input) []openapi.ResourceCondition {
	out := []openapi.ResourceCondition{}

	if condition, ok := in.computeReconciled(); ok {
		out = append(out, in.withPreviousTimes(condition))
	}

	if condition, ok := in.computeLastKnown(); ok {
		out = append(out, in.withPreviousTimes(condition))
	}

	for _, status := range in.requiredReports() {
		available := FindReported(status, Available)
		out = append(out, in.withPreviousTimes(openapi.ResourceCondition{
			Type: entity.AdapterConditionType(status.Adapter), Status: available.Status, Reason: available.Reason,
			Message:            available.Message,
			ObservedGeneration: status.ObservedGeneration,
			LastUpdatedTime:    status.LastReportTime,
			LastTransitionTime: status.LastReportTime,
		}))
	}

	return out
}

// IsFinished returns true if a resource that is being deleted can be removed: every required
// adapter has finalized its current generation, and the resource has no children.
func IsFinished(in Input) bool {
	obstacle, _ := in.findObstacle()

	return in.Deleting && obstacle == ""
}

// requiredReports returns the statuses that the required adapters have reported, in the order of
// Required. It leaves out statuses that do not count ([IsCounted]).
func (in Input) requiredReports() []openapi.AdapterStatus {
	var out []openapi.AdapterStatus

	for _, adapter := range in.Required {
		if status, found := in.findReport(adapter); found {
			out = append(out, status)
		}
	}

	return out
}

// findReport returns the status that an adapter has reported. It returns false if the adapter has
// reported none, or if the status does not count ([IsCounted]).
func (in Input) findReport(adapter string) (openapi.AdapterStatus, bool) {
	for _, status := range in.Statuses {
		if status.Adapter == adapter && IsCounted(status) {
			return status, true
		}
	}

	return openapi.AdapterStatus{}, false
}

// computeReconciled returns the condition Reconciled, and false if the resource has none. Its
// transition time is the time of the newest report, reference or resource update that the status
// depends on.
func (in Input) computeReconciled() (openapi.ResourceCondition, bool) {
	reason, message := in.findObstacle()
	if len(in.Required) == 0 && reason == "" {
		return openapi.ResourceCondition{}, false
	}

	out := openapi.ResourceCondition{
		Type: entity.Reconciled, Status: False, Reason: reason, Message: message,
		LastUpdatedTime: in.UpdatedTime, LastTransitionTime: in.UpdatedTime,
	}

	if reason == "" {
		out.Status, out.Reason, out.Message = True, ReasonReconciledAll, "every required adapter has finished"
	}

	var current []openapi.AdapterStatus

	for _, status := range in.requiredReports() {
		out.ObservedGeneration = max(out.ObservedGeneration, status.ObservedGeneration)
		out.LastTransitionTime = maxTime(out.LastTransitionTime, status.LastReportTime)

		if status.ObservedGeneration == in.Generation {
			current = append(current, status)
		}
	}

	for _, missing := range in.Missing {
		out.LastTransitionTime = maxTime(out.LastTransitionTime, missing.Since)
	}

	if len(current) > 0 {
		out.LastUpdatedTime = slices.MinFunc(current, compareReportTimes).LastReportTime
	}

	return out, true
}

// findObstacle returns why the resource is not reconciled. Both results are empty if the resource
// is reconciled.
func (in Input) findObstacle() (reason, message string) {
	if len(in.Missing) > 0 && !in.Deleting {
		return ReasonReferenceMissing, in.describeMissing()
	}

	requiredType := Available
	if in.Deleting {
		requiredType = Finalized
	}

	var unreported, failed []string

	for _, adapter := range in.Required {
		status, found := in.findReport(adapter)

		switch {
		case !found || status.ObservedGeneration != in.Generation:
			unreported = append(unreported, adapter)
		case FindReported(status, requiredType).Status != True:
			failed = append(failed, adapter)
		}
	}

	switch {
	case len(unreported) > 0:
		return ReasonMissingAdapters, fmt.Sprintf("no report on generation %d from %s", in.Generation, strings.Join(unreported, ", "))
	case len(failed) > 0:
		return ReasonFailedAdapters, fmt.Sprintf("not %s: %s", requiredType, strings.Join(failed, ", "))
	case in.Deleting && in.Children > 0:
		// The message omits the number of children. Otherwise each deleted child would change its parent.
		return ReasonWaitingForChildren, "child resources still exist"
	default:
		return "", ""
	}
}

func (in Input) describeMissing() string {
	texts := make([]string, 0, len(in.Missing))

	for _, reference := range in.Missing {
		if reference.ID == "" {
			texts = append(texts, reference.Type+" has too few targets")
		} else {
			texts = append(texts, reference.Type+" "+reference.ID+" does not exist or is being deleted")
		}
	}

	slices.Sort(texts)

	return strings.Join(texts, "; ")
}

// computeLastKnown returns the condition LastKnownReconciled, and false if the kind has no required
// adapters. The condition changes when all required adapters have reported on the same generation. It also
// becomes False when an adapter fails later at the generation at which it was True.
func (in Input) computeLastKnown() (openapi.ResourceCondition, bool) {
	if len(in.Required) == 0 {
		return openapi.ResourceCondition{}, false
	}

	condition, found := Condition(in.Previous, entity.LastKnownReconciled)
	if !found {
		condition = openapi.ResourceCondition{
			Type: entity.LastKnownReconciled, Status: False, Reason: ReasonNeverReconciled,
			Message:         "the required adapters have not all been available at one generation",
			LastUpdatedTime: in.UpdatedTime, LastTransitionTime: in.UpdatedTime,
		}
	}

	reports := in.requiredReports()
	isAtOneGeneration := len(reports) == len(in.Required) && haveSameGeneration(reports)
	failed := filterFailed(reports)
	hasFailedLater := condition.Status == True && slices.ContainsFunc(failed, func(report openapi.AdapterStatus) bool {
		return report.ObservedGeneration == condition.ObservedGeneration
	})

	switch {
	case isAtOneGeneration && len(failed) == 0:
		condition.Status, condition.Reason, condition.Message = True, ReasonLastKnownAll, "every required adapter is available"
	case isAtOneGeneration, hasFailedLater:
		condition.Status, condition.Reason = False, ReasonLastKnownFailed
		condition.Message = "not Available: " + joinAdapters(failed)
	default:
		return condition, true
	}

	if isAtOneGeneration {
		condition.ObservedGeneration = reports[0].ObservedGeneration
	}

	// The condition is only as current as the oldest of its reports. The newest of them has changed it.
	condition.LastUpdatedTime = slices.MinFunc(reports, compareReportTimes).LastReportTime
	condition.LastTransitionTime = slices.MaxFunc(reports, compareReportTimes).LastReportTime

	return condition, true
}

func haveSameGeneration(reports []openapi.AdapterStatus) bool {
	return !slices.ContainsFunc(reports, func(report openapi.AdapterStatus) bool {
		return report.ObservedGeneration != reports[0].ObservedGeneration
	})
}

func filterFailed(reports []openapi.AdapterStatus) []openapi.AdapterStatus {
	var out []openapi.AdapterStatus

	for _, report := range reports {
		if FindReported(report, Available).Status != True {
			out = append(out, report)
		}
	}

	return out
}

func joinAdapters(reports []openapi.AdapterStatus) string {
	names := make([]string, 0, len(reports))
	for _, report := range reports {
		names = append(names, report.Adapter)
	}

	return strings.Join(names, ", ")
}

func compareReportTimes(a, b openapi.AdapterStatus) int {
	return a.LastReportTime.Compare(b.LastReportTime)
}

// withPreviousTimes sets the times that a condition keeps from Previous: its creation time, and its
// transition time if the status has not changed.
func (in Input) withPreviousTimes(condition openapi.ResourceCondition) openapi.ResourceCondition {
	previous, found := Condition(in.Previous, condition.Type)

	switch {
	case !found:
		condition.CreatedTime = condition.LastTransitionTime
	case previous.Status == condition.Status:
		condition.CreatedTime, condition.LastTransitionTime = previous.CreatedTime, previous.LastTransitionTime
	default:
		condition.CreatedTime = previous.CreatedTime
		condition.LastTransitionTime = maxTime(condition.LastTransitionTime, previous.LastTransitionTime)
	}

	return condition
}

func maxTime(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}

	return a
}
