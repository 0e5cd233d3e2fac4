// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package conditions

import (
	"time"

	"github.com/hyperfleet/hyperfleet/api/openapi"
)

// resolution is how finely the times of reports are told apart. Whole seconds are what a
// task's now and Kubernetes write: compared more finely, a report that gives fractions
// would be later than one that comes after it.
const resolution = time.Second

// Discard says why a report is discarded, empty if it is not. Stored is the adapter's last
// one, nil if there is none; generation is that of the resource.
func Discard(report openapi.StatusReport, stored *openapi.AdapterStatus, generation int32) string {
	if report.ObservedTime.IsZero() {
		return "the report has no time"
	}

	if report.ObservedGeneration > generation {
		return "the report is of a generation that the resource has not got to"
	}

	if stored == nil {
		return ""
	}

	if Reported(openapi.AdapterStatus{Conditions: report.Conditions}, Available).Status == Unknown {
		return "the report knows less than the stored one"
	}

	if report.ObservedGeneration < stored.ObservedGeneration {
		return "the report is of an older generation than the stored one"
	}

	if report.ObservedGeneration == stored.ObservedGeneration &&
		report.ObservedTime.Before(stored.ObservedTime.Truncate(resolution)) {
		return "the report is older than the stored one"
	}

	return ""
}

// Store makes the record of a report that was not discarded. At is the time of the API.
func Store(report openapi.StatusReport, stored *openapi.AdapterStatus, at time.Time) openapi.AdapterStatus {
	out := openapi.AdapterStatus{
		Adapter:                 report.Adapter,
		AdapterConfigVersion:    report.AdapterConfigVersion,
		AdapterFrameworkVersion: report.AdapterFrameworkVersion,
		Conditions:              make([]openapi.AdapterCondition, 0, len(report.Conditions)),
		CreatedTime:             at,
		Data:                    report.Data,
		LastReportTime:          at,
		Metadata:                report.Metadata,
		ObservedGeneration:      report.ObservedGeneration,
		ObservedTime:            report.ObservedTime.UTC().Truncate(time.Microsecond),
	}

	if stored != nil {
		out.CreatedTime = stored.CreatedTime
	}

	for _, one := range report.Conditions {
		one.LastTransitionTime = &at

		if stored != nil {
			if was := Reported(*stored, one.Type); was.Status == one.Status && was.LastTransitionTime != nil {
				one.LastTransitionTime = was.LastTransitionTime
			}
		}

		out.Conditions = append(out.Conditions, one)
	}

	return out
}

// Counts tells whether a report takes part in aggregation: one that knows nothing yet does
// not.
func Counts(status openapi.AdapterStatus) bool {
	available := Reported(status, Available).Status

	return available == True || available == False
}
