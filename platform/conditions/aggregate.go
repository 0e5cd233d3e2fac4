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

// Aggregate gives the conditions that do not come from rules: Reconciled,
// LastKnownReconciled, then <Adapter>Successful for each required adapter that has
// reported, in the order of Required.
func Aggregate(in Input) []openapi.ResourceCondition {
	out := []openapi.ResourceCondition{}

	if one, ok := in.reconciled(); ok {
		out = append(out, in.settle(one))
	}

	if one, ok := in.lastKnown(); ok {
		out = append(out, in.settle(one))
	}

	for _, status := range in.reports() {
		said := Reported(status, Available)
		out = append(out, in.settle(openapi.ResourceCondition{
			Type: entity.AdapterCondition(status.Adapter), Status: said.Status, Reason: said.Reason, Message: said.Message,
			ObservedGeneration: status.ObservedGeneration,
			LastUpdatedTime:    status.LastReportTime,
			LastTransitionTime: status.LastReportTime,
		}))
	}

	return out
}

// Finished tells whether a resource that is being deleted may go: every required adapter
// has finalized its current generation and nothing is below it.
func Finished(in Input) bool {
	obstacle, _ := in.obstacle()

	return in.Deleting && obstacle == ""
}

// reports are those of the required adapters that count, in the order of Required.
func (in Input) reports() []openapi.AdapterStatus {
	var out []openapi.AdapterStatus

	for _, adapter := range in.Required {
		if status, found := in.status(adapter); found {
			out = append(out, status)
		}
	}

	return out
}

// status is the report of an adapter, if it counts.
func (in Input) status(adapter string) (openapi.AdapterStatus, bool) {
	for _, status := range in.Statuses {
		if status.Adapter == adapter && Counts(status) {
			return status, true
		}
	}

	return openapi.AdapterStatus{}, false
}

// reconciled has, as time of transition, that of the newest thing that it stands on.
func (in Input) reconciled() (openapi.ResourceCondition, bool) {
	reason, message := in.obstacle()
	if len(in.Required) == 0 && reason == "" {
		return openapi.ResourceCondition{}, false
	}

	out := openapi.ResourceCondition{
		Type: entity.Reconciled, Status: False, Reason: reason, Message: message,
		LastUpdatedTime: in.UpdatedTime, LastTransitionTime: in.UpdatedTime,
	}

	if reason == "" {
		out.Status, out.Reason, out.Message = True, ReasonAll, "every required adapter is done"
	}

	var current []openapi.AdapterStatus

	for _, status := range in.reports() {
		out.ObservedGeneration = max(out.ObservedGeneration, status.ObservedGeneration)
		out.LastTransitionTime = later(out.LastTransitionTime, status.LastReportTime)

		if status.ObservedGeneration == in.Generation {
			current = append(current, status)
		}
	}

	for _, missing := range in.Missing {
		out.LastTransitionTime = later(out.LastTransitionTime, missing.Since)
	}

	if len(current) > 0 {
		out.LastUpdatedTime = slices.MinFunc(current, byTime).LastReportTime
	}

	return out, true
}

// obstacle is why the resource is not reconciled; empty if it is.
func (in Input) obstacle() (reason, message string) {
	if len(in.Missing) > 0 && !in.Deleting {
		return ReasonReference, in.missing()
	}

	wanted := Available
	if in.Deleting {
		wanted = Finalized
	}

	var silent, failed []string

	for _, adapter := range in.Required {
		status, found := in.status(adapter)

		switch {
		case !found || status.ObservedGeneration != in.Generation:
			silent = append(silent, adapter)
		case Reported(status, wanted).Status != True:
			failed = append(failed, adapter)
		}
	}

	switch {
	case len(silent) > 0:
		return ReasonMissing, fmt.Sprintf("no report on generation %d from %s", in.Generation, strings.Join(silent, ", "))
	case len(failed) > 0:
		return ReasonFailed, fmt.Sprintf("not %s: %s", wanted, strings.Join(failed, ", "))
	case in.Deleting && in.Children > 0:
		// Without their number: each child that goes would be a change of its parent.
		return ReasonWaiting, "resources below this one are not gone yet"
	default:
		return "", ""
	}
}

func (in Input) missing() string {
	texts := make([]string, 0, len(in.Missing))

	for _, one := range in.Missing {
		if one.ID == "" {
			texts = append(texts, one.Type+" has too few targets")
		} else {
			texts = append(texts, one.Type+" "+one.ID+" is gone")
		}
	}

	slices.Sort(texts)

	return strings.Join(texts, "; ")
}

// lastKnown follows the reports of the required adapters at one generation.
func (in Input) lastKnown() (openapi.ResourceCondition, bool) {
	if len(in.Required) == 0 {
		return openapi.ResourceCondition{}, false
	}

	was, had := Condition(in.Previous, entity.LastKnownReconciled)
	if !had {
		was = openapi.ResourceCondition{
			Type: entity.LastKnownReconciled, Status: False, Reason: ReasonNeverYet,
			Message:         "the required adapters have not all been available at one generation",
			LastUpdatedTime: in.UpdatedTime, LastTransitionTime: in.UpdatedTime,
		}
	}

	reports := in.reports()
	common := len(reports) == len(in.Required)
	failedThen := false

	var failed []string

	for _, status := range reports {
		common = common && status.ObservedGeneration == reports[0].ObservedGeneration

		if Reported(status, Available).Status != True {
			failed = append(failed, status.Adapter)
			failedThen = failedThen || status.ObservedGeneration == was.ObservedGeneration
		}
	}

	switch {
	case common && len(failed) == 0:
		was.Status, was.Reason, was.Message = True, ReasonLastKnown, "every required adapter is available"
	case common, was.Status == True && failedThen:
		was.Status, was.Reason = False, ReasonLastKnownBad
		was.Message = "not Available: " + strings.Join(failed, ", ")
	default:
		return was, true
	}

	if common {
		was.ObservedGeneration = reports[0].ObservedGeneration
	}

	was.LastUpdatedTime = slices.MinFunc(reports, byTime).LastReportTime
	was.LastTransitionTime = slices.MaxFunc(reports, byTime).LastReportTime

	return was, true
}

func byTime(a, b openapi.AdapterStatus) int { return a.LastReportTime.Compare(b.LastReportTime) }

// settle gives a condition the times that it keeps from before.
func (in Input) settle(one openapi.ResourceCondition) openapi.ResourceCondition {
	was, had := Condition(in.Previous, one.Type)

	switch {
	case !had:
		one.CreatedTime = one.LastTransitionTime
	case was.Status == one.Status:
		one.CreatedTime, one.LastTransitionTime = was.CreatedTime, was.LastTransitionTime
	default:
		one.CreatedTime = was.CreatedTime
		one.LastTransitionTime = later(one.LastTransitionTime, was.LastTransitionTime)
	}

	return one
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}

	return a
}
