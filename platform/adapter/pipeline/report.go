// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/kit/retry"
	"github.com/hyperfleet/hyperfleet/platform/client"
)

const (
	conditionAvailable = "Available"
	conditionApplied   = "Applied"
	conditionHealth    = "Health"
	statusFalse        = "False"
	statusUnknown      = "Unknown"

	// reportTimeout is the timeout of the framework's report. After the end of the event's context, which ends with
	// event_timeout or with the process, the report may take retry.EndGrace.
	reportTimeout = 20 * time.Second
	// maxMessageLength is the maximum length of a message in a report, in bytes.
	maxMessageLength = 1024
)

// phaseReason returns the condition reason for a phase that failed, such as ParamsFailed.
func phaseReason(phase Phase) string {
	return cmp.Or(map[Phase]string{
		PhaseParams: "ParamsFailed", PhasePreconditions: "PreconditionsFailed", PhaseResources: "ResourcesFailed",
	}[phase], "PostActionsFailed")
}

// shortenError returns the text of an error for a report: valid UTF-8, in one line, with at most
// maxMessageLength bytes.
func shortenError(err error) string {
	text := strings.Join(strings.Fields(strings.ToValidUTF8(err.Error(), "?")), " ")
	if len(text) > maxMessageLength {
		text = strings.ToValidUTF8(text[:maxMessageLength-3], "") + "..."
	}

	return text
}

// reportFailure reports the failure to the API, unless the task file has reported it. It does not
// report a transient failure of the post phase, because the next attempt runs the post phase again.
func (r *run) reportFailure(ctx context.Context) {
	if r.result.Phase == PhasePost && r.isFailureTransient || slices.ContainsFunc(r.accepted, r.reportsUnavailable) {
		return
	}

	graced, cancelGrace := retry.WithGrace(ctx, retry.EndGrace)
	defer cancelGrace()

	bounded, cancel := context.WithTimeout(graced, reportTimeout)
	defer cancel()

	trace := &ReportTrace{Reason: phaseReason(r.result.Phase), Message: shortenError(r.result.Failure), Outcome: StepDone}
	r.result.Trace.Report = trace

	isStored, err := r.p.api.PutStatus(bounded, r.event.ResourceID, r.newReport(trace))

	switch {
	case err == nil && !isStored:
		trace.Outcome = StepDiscarded
	case err == nil:
	case errors.Is(err, client.ErrNotFound):
		r.isResourceMissing = true
	default:
		trace.Outcome, trace.Error = StepFailed, err.Error()
		r.recordFailure(PhaseReport, "", fmt.Errorf("report the failure: %w", err))
	}
}

// newReport returns the status report of a failed run, with Available=False and Health=False. Applied is
// False if the resources phase has failed, and Unknown otherwise. trace has the reason and the message of
// the failure.
func (r *run) newReport(trace *ReportTrace) openapi.StatusReport {
	condition := func(conditionType, status string) openapi.AdapterCondition {
		return openapi.AdapterCondition{Type: conditionType, Status: status, Reason: trace.Reason, Message: trace.Message}
	}

	applied := statusUnknown
	if r.result.Phase == PhaseResources {
		applied = statusFalse
	}

	return openapi.StatusReport{
		Adapter:            r.p.Deployment.Adapter.Name,
		ObservedGeneration: int32(r.event.Generation), //nolint:gosec // parseEvent checks the range
		ObservedTime:       r.p.Clock.Now().UTC(),
		Conditions: []openapi.AdapterCondition{
			condition(conditionAvailable, statusFalse), condition(conditionApplied, applied), condition(conditionHealth, statusFalse),
		},
		AdapterConfigVersion: r.p.Deployment.Adapter.Version, AdapterFrameworkVersion: r.p.FrameworkVersion,
	}
}
