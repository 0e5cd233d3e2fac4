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
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/kit/tracing"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
)

// times gives the moments of the machine's life, to read and to write.
func (s *scope) times() *v1alpha1.MachineTimes {
	if s.claim.Status.Times == nil {
		s.claim.Status.Times = &v1alpha1.MachineTimes{}
	}

	return s.claim.Status.Times
}

func (s *scope) micro() *metav1.MicroTime {
	now := metav1.NewMicroTime(s.Clock.Now())

	return &now
}

// markEnded notes why the machine's life is over. It says false where that is on record.
func (s *scope) markEnded(reason string) bool {
	if s.times().Ended != nil {
		return false
	}

	s.claim.Status.EndReason = reason
	s.times().Ended = s.micro()

	return true
}

// markStarted notes that the VM runs. What ended the machine before that, such as a storage
// that was full, is over.
func (s *scope) markStarted() {
	s.times().Started = s.micro()
	s.times().Ended, s.claim.Status.EndReason = nil, ""
}

// since is the time since a moment; 0 where it has not come.
func (s *scope) since(t *metav1.MicroTime) time.Duration {
	if t == nil {
		return 0
	}

	return s.Clock.Since(t.Time)
}

func (s *scope) ref() hypervisor.MachineRef { return vmspec.Ref(s.claim) }

// eventf emits an event and a line in the log once the status is written.
func (s *scope) eventf(ctx context.Context, kind, reason, action, format string, args ...any) {
	step.OnSaved(ctx, notice(kind, reason, action, format, args...).Emit(ctx))
}

// saidf is eventf for what a step says each time that it runs: it is told when the step's
// condition changes.
func (s *scope) saidf(ctx context.Context, kind, reason, action, format string, args ...any) {
	step.OnTransition(ctx, notice(kind, reason, action, format, args...).Emit(ctx))
}

func notice(kind, reason, action, format string, args ...any) step.Notice {
	return step.Notice{Type: kind, Reason: reason, Action: action, Message: fmt.Sprintf(format, args...)}
}

// phaseTook puts the length of a phase into the metrics once the status is written.
func (s *scope) phaseTook(ctx context.Context, phase string, since *metav1.MicroTime) {
	took := s.since(since)
	step.OnSaved(ctx, func() { s.Metrics.phase(s.claim, phase, took) })
}

// tellLife makes the root span of a machine that had no job. That of one that had a job is the
// job's.
func (s *scope) tellLife(reason string) {
	if info := s.claim.Status.BootstrapInfo; info != nil && info.Job != "" {
		return
	}

	tracing.Tell(tracing.RootOf(string(s.claim.UID)), tracing.Part{
		Name: "machine", Start: s.claim.CreationTimestamp.Time, End: s.Clock.Now(),
		Attributes: []attribute.KeyValue{
			attribute.String("k8s.namespace.name", s.claim.Namespace), attribute.String("hyperfleet.object.name", s.claim.Name),
			attribute.String("hyperfleet.reason", reason),
		},
	})
}

// LogValues gives what a line in the log names of a claim: its VM, node, runner and job. Of
// other objects it gives nothing.
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
