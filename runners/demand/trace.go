// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"cmp"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/kit/tracing"
)

// SpanContext returns the span context of the trace that an object's steps belong to. A claim has
// the trace of its machine. A job has the trace of its machine, or its own trace while it has no
// machine. For other objects it returns the zero SpanContext.
func SpanContext(obj step.Object) trace.SpanContext {
	switch obj := obj.(type) {
	case *v1alpha1.MachineClaim:
		return tracing.RootForUID(string(obj.UID))
	case *v1alpha1.RunnerJob:
		if root := tracing.RootForTraceID(obj.Status.TraceID); root.IsValid() {
			return root
		}

		return tracing.RootForUID(string(obj.UID))
	default:
		return trace.SpanContext{}
	}
}

// setTraceID records the trace of the job's machine in the job's status, or the job's own trace
// while the job has no machine.
func (s *scope) setTraceID() {
	status := &s.job.Status

	switch {
	case s.jobMachine != nil && s.jobMachine.UID != "" && status.Claim == s.jobMachine.Name:
		status.TraceID = tracing.TraceID(tracing.RootForUID(s.jobMachine.UID))
	case status.TraceID == "":
		status.TraceID = tracing.TraceID(tracing.RootForUID(string(s.job.UID)))
	}
}

// recordSpans records the spans of a completed job when its machine is deleted. If the job had no
// machine, it records them when the job is completed.
func (s *scope) recordSpans(event v1alpha1.JobEvent) {
	isLast := event.Moment == v1alpha1.MomentDestroyed ||
		event.Moment == v1alpha1.MomentFinished && s.job.Status.Claim == "" && s.jobMachine == nil
	if !isLast {
		return
	}

	spec := &s.job.Spec
	parts := newTimelineSpans(s.job.Status.Timeline)
	whole := tracing.Span{
		Name: "job", Start: event.Time.Time, End: event.Time.Time,
		Attributes: []attribute.KeyValue{
			attribute.String("k8s.namespace.name", s.job.Namespace), attribute.String("hyperfleet.job", s.job.Name),
			attribute.String("hyperfleet.platform", spec.Platform), attribute.String("hyperfleet.repository", spec.Repository),
			attribute.String("hyperfleet.workflow", spec.Workflow), attribute.String("hyperfleet.pool", s.job.Status.Pool),
			attribute.String("hyperfleet.machine", s.job.Status.Claim), attribute.String("hyperfleet.conclusion", spec.Conclusion),
		},
	}

	for _, part := range parts {
		if part.Start.Before(whole.Start) {
			whole.Start = part.Start
		}
	}

	tracing.EmitTrace(SpanContext(s.job), whole, parts...)
}

// newTimelineSpans returns the spans between the events of a job's timeline.
func newTimelineSpans(timeline []v1alpha1.JobEvent) []tracing.Span {
	timeOf := func(kinds ...v1alpha1.JobMoment) time.Time { return firstTime(timeline, kinds...) }
	decided := cmp.Or(timeOf(v1alpha1.MomentDecided), timeOf(v1alpha1.MomentFinished))

	parts := []tracing.Span{
		{Name: "job queued", Start: timeOf(v1alpha1.MomentQueued, v1alpha1.MomentReceived), End: decided},
		{Name: "machine made", Start: decided, End: timeOf(v1alpha1.MomentCloned)},
		{Name: "machine booted", Start: timeOf(v1alpha1.MomentCloned), End: timeOf(v1alpha1.MomentRegistered)},
		{Name: "runner idle", Start: timeOf(v1alpha1.MomentRegistered), End: timeOf(v1alpha1.MomentStarted)},
		{Name: "job run", Start: timeOf(v1alpha1.MomentStarted), End: timeOf(v1alpha1.MomentFinished)},
		{Name: "machine destroyed", Start: timeOf(v1alpha1.MomentFinished), End: timeOf(v1alpha1.MomentDestroyed)},
	}

	// The creation of a warm machine came before the job; such a span is left out.
	return slices.DeleteFunc(parts, func(p tracing.Span) bool {
		return p.Start.IsZero() || p.End.IsZero() || p.End.Before(p.Start)
	})
}
