// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hosts/drift"
	"github.com/hyperfleet/hyperfleet/hosts/machine"
	"github.com/hyperfleet/hyperfleet/hosts/rollout"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/kit/window"
)

// rollOut decides which hosts may be pushed to now. It writes their permits and the progress of the rollout to
// the fleet's status.
func rollOut(ctx context.Context, s *scope) step.Result {
	objects, err := machine.List(ctx, s.Client, s.kind, s.fleet.Namespace, s.fleet.Name)
	if err != nil {
		return step.Fail(err)
	}

	now, desired := s.Clock.Now(), machine.Desired(s.kind.Hash(), s.fleet)
	hosts := make([]rollout.Host, 0, len(objects))

	for _, obj := range objects {
		hosts = append(hosts, newRolloutHost(obj, desired, s.Policy, now))
	}

	policy, state := newRolloutPolicy(&s.fleet.Spec, len(hosts)), newRolloutState(&s.fleet.Status)
	for i := range hosts { // the fleet's own status may have been lost
		state.LastPermit = max(state.LastPermit, hosts[i].LastPermit)
	}

	next, report := rollout.Decide(policy, state, hosts, desired.Target(), now)

	status := &s.fleet.Status
	status.HostConfigHash, status.MacOSVersion, status.LastPermit = desired.Hash, desired.OSVersion, next.LastPermit
	status.StoppedHash, status.StoppedReason = next.StoppedHash, next.StoppedReason
	status.RolloutStarted, status.StoppedAt = newMetaTime(next.Started), newMetaTime(next.StoppedAt)
	status.Permits = nil

	for _, p := range next.Permits {
		status.Permits = append(status.Permits, v1alpha1.HostPermit{
			Host: p.Host, Number: p.Number, Hash: p.Hash, What: string(p.Action),
		})
	}

	status.Hosts, status.Converged, status.Drifted = toInt32(report.Hosts), toInt32(report.Converged), toInt32(report.Drifted)
	status.Failed, status.Unreachable = toInt32(report.Failed), toInt32(report.Unreachable)
	s.Metrics.set(s.fleet, report)

	result := newResult(next, report, now, s.requeueAfter)
	if !report.Stopped {
		return result
	}

	// The event must describe a state that is saved, so save first.
	if err := step.SaveStatusWithResult(ctx, result); err != nil {
		return step.Fail(err)
	}

	s.Recorder.Eventf(s.fleet, nil, corev1.EventTypeWarning, "RolloutStopped", "Rollout", "%s", next.StoppedReason)

	return result
}

// newResult returns the result of the rollout step, with the condition RolloutStopped. The result requeues the
// fleet when the rollout can continue, or after requeueAfter if that is sooner. A requeueAfter of 0 means never.
func newResult(next rollout.State, report rollout.Report, now time.Time, requeueAfter time.Duration) step.Result {
	delay := requeueAfter
	if !report.Next.IsZero() && (requeueAfter == 0 || report.Next.Sub(now) < requeueAfter) {
		delay = report.Next.Sub(now)
	}

	message := report.Message
	if err := errors.Join(report.Problems...); err != nil {
		message = fmt.Sprintf("%s; invalid maintenance window, which counts as closed: %v", message, err)
	}

	var result step.Result

	switch report.Reason {
	case rollout.ReasonConverged:
		result = step.Done().WithReason(report.Reason, message)
		if requeueAfter > 0 {
			result = step.WaitReady(requeueAfter, report.Reason, message)
		}
	case rollout.ReasonStopped, rollout.ReasonNoConfig:
		// A person has to act. Until then, the number of hosts is still checked after requeueAfter.
		result = step.Stall(report.Reason, message)
		if requeueAfter > 0 {
			result = step.Wait(requeueAfter, report.Reason, message)
		}
	default:
		result = step.Wait(delay, report.Reason, message)
	}

	if next.StoppedHash != "" {
		return result.WithCondition(v1alpha1.ConditionRolloutStopped, metav1.ConditionTrue, rollout.ReasonStopped, next.StoppedReason)
	}

	return result.WithCondition(v1alpha1.ConditionRolloutStopped, metav1.ConditionFalse, "NotStopped", "")
}

// newRolloutHost converts a host to the input of the rollout.
func newRolloutHost(obj machine.Object, desired drift.Desired, policy drift.Policy, now time.Time) rollout.Host {
	status := obj.Host()
	d := drift.Decide(status, desired, policy, now)

	out := rollout.Host{
		Name: obj.GetName(), Action: d.Action, Applied: status.HostConfigHash,
		Refused: status.FailedHostConfigHash, Failed: d.Action == drift.Terminal,
		Unreachable: status.UnreachableSince != nil,
		// A first boot has no permit, so it is not a push of the rollout.
		Pushing:    status.Push != nil && status.Push.Permit != 0,
		LastPermit: status.LastPermit, Deleting: !obj.GetDeletionTimestamp().IsZero(),
	}

	// The target counts as applied once the host has both the configuration and the version.
	if status.HostConfigHash == desired.Hash && drift.IsAtLeast(status.OSVersion, desired.OSVersion) {
		out.Applied = desired.Target()
	}

	if d.Action == drift.Wait {
		out.Action, out.NotBefore = d.NextAction, d.RetryTime
	}

	if status.LastUpdateFailureTime != nil {
		out.RefusedAt = status.LastUpdateFailureTime.Time
	}

	return out
}

// newRolloutPolicy converts the spec to a policy. hostCount is the number of hosts, for a maxUnavailable in
// percent.
func newRolloutPolicy(spec *v1alpha1.HostFleetSpec, hostCount int) rollout.Policy {
	r := spec.Rollout
	out := rollout.Policy{
		MaxUnavailable: resolveMaxUnavailable(r.MaxUnavailable, hostCount), Canary: 1,
		Threshold: int(r.FailureThreshold), Paused: spec.Paused,
	}

	if r.Canary != nil {
		out.Canary = int(*r.Canary)
	}

	if r.Jitter != nil {
		out.Jitter = r.Jitter.Duration
	}

	if spec.ResumedAt != nil {
		out.ResumedAt = spec.ResumedAt.Time
	}

	for _, w := range r.MaintenanceWindows {
		out.Windows = append(out.Windows, rollout.Window{
			Name: w.Name, Window: window.Window{Start: w.Start, TimeZone: w.TimeZone, Duration: w.Duration.Duration},
		})
	}

	return out
}

// resolveMaxUnavailable converts a maxUnavailable, which may be a percentage, to a number of hosts. It
// rounds down and returns at least 1. Without a value it returns 1.
func resolveMaxUnavailable(value *intstr.IntOrString, hostCount int) int {
	if value == nil {
		return 1
	}

	n, err := intstr.GetScaledValueFromIntOrPercent(value, hostCount, false)
	if err != nil {
		return 1 // cannot happen: the CRD's schema rejects other texts
	}

	return max(1, n)
}

func newRolloutState(status *v1alpha1.HostFleetStatus) rollout.State {
	recorded := drift.Desired{Hash: status.HostConfigHash, OSVersion: status.MacOSVersion}
	out := rollout.State{
		Hash: recorded.Target(), LastPermit: status.LastPermit,
		StoppedHash: status.StoppedHash, StoppedReason: status.StoppedReason,
	}

	if status.RolloutStarted != nil {
		out.Started = status.RolloutStarted.Time
	}

	if status.StoppedAt != nil {
		out.StoppedAt = status.StoppedAt.Time
	}

	for _, p := range status.Permits {
		out.Permits = append(out.Permits, rollout.Permit{Host: p.Host, Number: p.Number, Hash: p.Hash, Action: drift.Action(p.What)})
	}

	return out
}

func toInt32(n int) int32 { return int32(n) } //nolint:gosec // G115: a fleet has fewer than 2^31 hosts

// newMetaTime converts a time to whole seconds, as the API stores it, and a zero time to nil.
func newMetaTime(timestamp time.Time) *metav1.Time {
	if timestamp.IsZero() {
		return nil
	}

	return new(metav1.NewTime(timestamp).Rfc3339Copy())
}
