// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/client"
)

const (
	conditionAvailable = "Available"
	conditionApplied   = "Applied"
	conditionHealth    = "Health"
	statusFalse        = "False"
	statusUnknown      = "Unknown"

	// reportTimeout is for the report of an event whose own time is up.
	reportTimeout = 20 * time.Second
	// maxMessage of a report, in bytes.
	maxMessage = 1024
)

// reason is the word for a phase that failed: ParamsFailed.
func reason(phase Phase) string {
	return cmp.Or(map[Phase]string{
		PhaseParams: "ParamsFailed", PhasePreconditions: "PreconditionsFailed", PhaseResources: "ResourcesFailed",
	}[phase], "PostActionsFailed")
}

// short is an error for a report.
func short(err error) string {
	text := strings.Join(strings.Fields(strings.ToValidUTF8(err.Error(), "?")), " ")
	if len(text) > maxMessage {
		text = strings.ToValidUTF8(text[:maxMessage-3], "") + "..."
	}

	return text
}

// report tells the API of the failure, unless the task file did. A failure of the post
// phase alone that may pass is not reported: the next try reports what is.
func (r *run) report(ctx context.Context) {
	if r.reported || r.result.Phase == PhasePost && r.transient {
		return
	}

	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), reportTimeout)
	defer cancel()

	trace := &ReportTrace{Reason: reason(r.result.Phase), Message: short(r.result.Failure), Outcome: StepDone}
	r.result.Trace.Report = trace

	taken, err := r.p.api.PutStatus(bounded, r.about.ResourceID, r.failure(trace))

	switch {
	case err == nil && !taken:
		trace.Outcome = StepDiscarded
	case err == nil:
	case errors.Is(err, client.ErrNotFound):
		r.gone = true
	default:
		trace.Outcome, trace.Error = StepFailed, err.Error()
		r.fail(PhaseReport, "", fmt.Errorf("report the failure: %w", err))
	}
}

// failure is the report: not available, whatever else is known.
func (r *run) failure(trace *ReportTrace) openapi.StatusReport {
	condition := func(kind, status string) openapi.AdapterCondition {
		return openapi.AdapterCondition{Type: kind, Status: status, Reason: trace.Reason, Message: trace.Message}
	}

	applied := statusUnknown
	if r.result.Phase == PhaseResources {
		applied = statusFalse
	}

	return openapi.StatusReport{
		Adapter:            r.p.Deployment.Adapter.Name,
		ObservedGeneration: int32(r.about.Generation), //nolint:gosec // parse has checked the range
		ObservedTime:       r.p.Clock.Now().UTC(),
		Conditions: []openapi.AdapterCondition{
			condition(conditionAvailable, statusFalse), condition(conditionApplied, applied), condition(conditionHealth, statusFalse),
		},
		AdapterConfigVersion: r.p.Deployment.Adapter.Version, AdapterFrameworkVersion: r.p.FrameworkVersion,
	}
}
