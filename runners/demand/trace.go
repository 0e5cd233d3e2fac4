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

// TraceOf is the trace that an object's steps belong to: that of its machine for a claim and for
// the job that has the machine, its own for a job that has none yet. Other objects have none.
func TraceOf(obj step.Object) trace.SpanContext {
	switch obj := obj.(type) {
	case *v1alpha1.MachineClaim:
		return tracing.RootOf(string(obj.UID))
	case *v1alpha1.RunnerJob:
		if root := tracing.RootIn(obj.Status.TraceID); root.IsValid() {
			return root
		}

		return tracing.RootOf(string(obj.UID))
	default:
		return trace.SpanContext{}
	}
}

// trace puts the job into the trace of the machine that has it.
func (s *scope) trace() {
	status := &s.job.Status

	switch {
	case s.mine != nil && s.mine.UID != "" && status.Claim == s.mine.Name:
		status.TraceID = tracing.ID(tracing.RootOf(s.mine.UID))
	case status.TraceID == "":
		status.TraceID = tracing.ID(tracing.RootOf(string(s.job.UID)))
	}
}

// tell makes the spans of a job's life, now that it is over: when its machine is gone, or with
// the job where it had none.
func (s *scope) tell(event v1alpha1.JobEvent) {
	over := event.Moment == v1alpha1.MomentDestroyed ||
		event.Moment == v1alpha1.MomentFinished && s.job.Status.Claim == "" && s.mine == nil
	if !over {
		return
	}

	spec := &s.job.Spec
	parts := partsOf(s.job.Status.Timeline)
	whole := tracing.Part{
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

	tracing.Tell(TraceOf(s.job), whole, parts...)
}

// partsOf divides a job's life by the moments of its timeline.
func partsOf(timeline []v1alpha1.JobEvent) []tracing.Part {
	at := func(moments ...v1alpha1.JobMoment) time.Time { return firstOf(timeline, moments...) }
	decided := cmp.Or(at(v1alpha1.MomentDecided), at(v1alpha1.MomentFinished))

	parts := []tracing.Part{
		{Name: "job queued", Start: at(v1alpha1.MomentQueued, v1alpha1.MomentReceived), End: decided},
		{Name: "machine made", Start: decided, End: at(v1alpha1.MomentCloned)},
		{Name: "machine booted", Start: at(v1alpha1.MomentCloned), End: at(v1alpha1.MomentRegistered)},
		{Name: "runner idle", Start: at(v1alpha1.MomentRegistered), End: at(v1alpha1.MomentStarted)},
		{Name: "job run", Start: at(v1alpha1.MomentStarted), End: at(v1alpha1.MomentFinished)},
		{Name: "machine destroyed", Start: at(v1alpha1.MomentFinished), End: at(v1alpha1.MomentDestroyed)},
	}

	// A machine that was warm was made before the job was heard of.
	return slices.DeleteFunc(parts, func(p tracing.Part) bool {
		return p.Start.IsZero() || p.End.IsZero() || p.End.Before(p.Start)
	})
}
