// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/kit/tracing"
)

// times returns the recorded times of the machine. The caller may change them.
func (s *scope) times() *v1alpha1.MachineTimes {
	if s.claim.Status.Times == nil {
		s.claim.Status.Times = &v1alpha1.MachineTimes{}
	}

	return s.claim.Status.Times
}

func (s *scope) now() *metav1.MicroTime {
	now := metav1.NewMicroTime(s.Clock.Now())

	return &now
}

// setEnded records the end of the machine and its reason. It returns false if an end is already recorded,
// and changes nothing then.
func (s *scope) setEnded(reason string) bool {
	if s.times().Ended != nil {
		return false
	}

	s.claim.Status.EndReason = reason
	s.times().Ended = s.now()

	return true
}

// setStarted records that the VM runs. It clears an end that was recorded earlier, for example because a
// storage was full.
func (s *scope) setStarted() {
	s.times().Started = s.now()
	s.times().Ended, s.claim.Status.EndReason = nil, ""
}

// elapsedSince returns the time since t, or 0 if t is nil.
func (s *scope) elapsedSince(t *metav1.MicroTime) time.Duration {
	if t == nil {
		return 0
	}

	return s.Clock.Since(t.Time)
}

// eventf emits an event and a log line after the status is written.
func (s *scope) eventf(ctx context.Context, kind, reason, action, format string, args ...any) {
	step.OnSaved(ctx, newNotice(kind, reason, action, format, args...).EmitFunc(ctx))
}

// transitionEventf is like eventf, but emits the event only if the status or reason of the step's condition
// changes. It is for events that a step would otherwise repeat in every reconcile.
func (s *scope) transitionEventf(ctx context.Context, kind, reason, action, format string, args ...any) {
	step.OnTransition(ctx, newNotice(kind, reason, action, format, args...).EmitFunc(ctx))
}

func newNotice(kind, reason, action, format string, args ...any) step.Event {
	return step.Event{Type: kind, Reason: reason, Action: action, Message: fmt.Sprintf(format, args...)}
}

// observePhase records the duration of a phase in the metrics after the status is written. It does not cause a
// write that the step defers, unless a person has created the claim and watches it (hyperfleet doctor --try).
func (s *scope) observePhase(ctx context.Context, phase string, since *metav1.MicroTime) {
	duration := s.elapsedSince(since)
	callAfterWrite := step.OnNextSave

	if s.claim.PoolName() == "" {
		callAfterWrite = step.OnSaved
	}

	callAfterWrite(ctx, func() { s.Metrics.observePhase(s.claim, phase, duration) })
}

// traceMachine creates the root span of a machine that had no job. A machine with a job is part of the
// trace of its job.
func (s *scope) traceMachine(reason string) {
	if info := s.claim.Status.BootstrapInfo; info != nil && info.Job != "" {
		return
	}

	tracing.EmitTrace(tracing.RootForUID(string(s.claim.UID)), tracing.Span{
		Name: "machine", Start: s.claim.CreationTimestamp.Time, End: s.Clock.Now(),
		Attributes: []attribute.KeyValue{
			attribute.String("k8s.namespace.name", s.claim.Namespace), attribute.String("hyperfleet.object.name", s.claim.Name),
			attribute.String("hyperfleet.reason", reason),
		},
	})
}

// LogValues returns the log attributes of a claim: its VM, node, cluster, runner and job. It returns nil
// for other objects.
func LogValues(obj step.Object) []any {
	claim, ok := obj.(*v1alpha1.MachineClaim)
	if !ok {
		return nil
	}

	var out []any

	add := func(key, value string) {
		if value != "" {
			out = append(out, key, value)
		}
	}

	if vm := claim.Status.VMRef; vm != nil {
		add("vm", vm.VMID)
		add("node", vm.Node)
		add("cluster", vm.HypervisorCluster)
	}

	if info := claim.Status.BootstrapInfo; info != nil {
		add("runner", info.RunnerName)
		add("job", info.Job)
	}

	return out
}
