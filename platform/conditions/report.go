// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package conditions

import (
	"time"

	"github.com/hyperfleet/hyperfleet/api/openapi"
)

// resolution is the precision with which times of reports are compared. Kubernetes and a task's
// "now" have whole seconds. With a higher precision, a report with fractions of a second would seem
// newer than a later report without them.
const resolution = time.Second

// DiscardReason returns why a report has to be discarded. The result is empty if the report has to
// be stored. Stored is the adapter's stored report, nil if there is none. Generation is the
// resource's generation.
func DiscardReason(report openapi.StatusReport, stored *openapi.AdapterStatus, generation int32) string {
	if report.ObservedTime.IsZero() {
		return "the report has no observed_time"
	}

	if report.ObservedGeneration > generation {
		return "the report is for a generation that the resource has not reached"
	}

	if stored == nil {
		return ""
	}

	if FindReported(openapi.AdapterStatus{Conditions: report.Conditions}, Available).Status == Unknown {
		return "the report has Available=Unknown, and another report is stored"
	}

	if report.ObservedGeneration < stored.ObservedGeneration {
		return "the report is for an older generation than the stored report"
	}

	if report.ObservedGeneration == stored.ObservedGeneration &&
		report.ObservedTime.Before(stored.ObservedTime.Truncate(resolution)) {
		return "the report is older than the stored report"
	}

	return ""
}

// NewStatus returns the status to store for a report that was not discarded. The status keeps the
// creation time of the stored one, and the transition time of each condition whose status has not
// changed. The parameter now is the time of the API server.
func NewStatus(report openapi.StatusReport, stored *openapi.AdapterStatus, now time.Time) openapi.AdapterStatus {
	out := openapi.AdapterStatus{
		Adapter:                 report.Adapter,
		AdapterConfigVersion:    report.AdapterConfigVersion,
		AdapterFrameworkVersion: report.AdapterFrameworkVersion,
		Conditions:              make([]openapi.AdapterCondition, 0, len(report.Conditions)),
		CreatedTime:             now,
		Data:                    report.Data,
		LastReportTime:          now,
		Metadata:                report.Metadata,
		ObservedGeneration:      report.ObservedGeneration,
		ObservedTime:            report.ObservedTime.UTC().Truncate(time.Microsecond),
	}

	if stored != nil {
		out.CreatedTime = stored.CreatedTime
	}

	for _, condition := range report.Conditions {
		condition.LastTransitionTime = &now

		if stored != nil {
			previous := FindReported(*stored, condition.Type)
			if previous.Status == condition.Status && previous.LastTransitionTime != nil {
				condition.LastTransitionTime = previous.LastTransitionTime
			}
		}

		out.Conditions = append(out.Conditions, condition)
	}

	return out
}

// IsCounted returns true if a report takes part in the aggregation. A report with Available=Unknown
// or without Available does not.
func IsCounted(status openapi.AdapterStatus) bool {
	available := FindReported(status, Available).Status

	return available == True || available == False
}
