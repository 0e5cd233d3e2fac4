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

// roll gives out permits, and says how far the fleet's configuration has got.
func roll(ctx context.Context, s *scope) step.Result {
	objects, err := machine.List(ctx, s.Client, s.kind, s.fleet.Namespace, s.fleet.Name)
	if err != nil {
		return step.Fail(err)
	}

	now, desired := s.Clock.Now(), machine.Desired(s.kind.Hash(), s.fleet)
	hosts := make([]rollout.Host, 0, len(objects))

	for _, obj := range objects {
		hosts = append(hosts, hostOf(obj, desired, s.Policy, now))
	}

	next, report := rollout.Decide(policyOf(&s.fleet.Spec, len(hosts)), stateOf(&s.fleet.Status), hosts, desired.Target(), now)
	write(&s.fleet.Status, next, desired, report)
	s.Metrics.set(s.fleet, report)

	result := resultOf(next, report, now, s.again)
	if !report.Stopped {
		return result
	}

	// The event is of what is on record.
	if err := step.SaveAs(ctx, result); err != nil {
		return step.Fail(err)
	}

	s.Recorder.Eventf(s.fleet, nil, corev1.EventTypeWarning, "RolloutStopped", "Rollout", "%s", next.StoppedReason)

	return result
}

func resultOf(next rollout.State, report rollout.Report, now time.Time, again time.Duration) step.Result {
	after := again
	if !report.Next.IsZero() && (again == 0 || report.Next.Sub(now) < again) {
		after = report.Next.Sub(now)
	}

	message := report.Message
	if err := errors.Join(report.Problems...); err != nil {
		message = fmt.Sprintf("%s; %v: the window counts as closed", message, err)
	}

	var result step.Result

	switch report.Reason {
	case rollout.ReasonConverged:
		if result = step.Done().WithReason(report.Reason, message); again > 0 {
			result = step.Steady(again, report.Reason, message)
		}
	case rollout.ReasonStopped, rollout.ReasonNoConfig:
		// A person has to act, and the number of hosts goes on meanwhile.
		if result = step.Stall(report.Reason, message); again > 0 {
			result = step.Wait(again, report.Reason, message)
		}
	default:
		result = step.Wait(after, report.Reason, message)
	}

	if next.StoppedHash != "" {
		return result.Also(v1alpha1.ConditionRolloutStopped, metav1.ConditionTrue, rollout.ReasonStopped, next.StoppedReason)
	}

	return result.Also(v1alpha1.ConditionRolloutStopped, metav1.ConditionFalse, "GoesOn", "")
}

// hostOf is a host as the rollout sees it.
func hostOf(obj machine.Object, desired drift.Desired, policy drift.Policy, now time.Time) rollout.Host {
	status := obj.Host()
	d := drift.Decide(status, desired, policy, now)

	out := rollout.Host{
		Name: obj.GetName(), Want: d.Do, Applied: status.HostConfigHash,
		Refused: status.FailedHostConfigHash, Failed: d.Do == drift.Terminal,
		Unreachable: status.UnreachableSince != nil,
		// A first boot has no permit, and is none of the rollout's pushes.
		Pushing:    status.Push != nil && status.Push.Permit != 0,
		LastPermit: status.LastPermit, Leaving: !obj.GetDeletionTimestamp().IsZero(),
	}

	// It has all when it has both.
	if status.HostConfigHash == desired.Hash && drift.Reached(status.OSVersion, desired.OSVersion) {
		out.Applied = desired.Target()
	}

	if d.Do == drift.Wait {
		out.Want, out.NotBefore = d.Next, d.Until
	}

	if status.LastUpdateFailureTime != nil {
		out.RefusedAt = status.LastUpdateFailureTime.Time
	}

	return out
}

func policyOf(spec *v1alpha1.HostFleetSpec, hosts int) rollout.Policy {
	r := spec.Rollout
	out := rollout.Policy{
		MaxUnavailable: most(r.MaxUnavailable, hosts), Canary: 1, Threshold: int(r.FailureThreshold), Paused: spec.Paused,
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

// most is a number or a part of the hosts, rounded down, and at least one.
func most(value *intstr.IntOrString, hosts int) int {
	if value == nil {
		return 1
	}

	n, err := intstr.GetScaledValueFromIntOrPercent(value, hosts, false)
	if err != nil {
		return 1 // the API server lets no other text in
	}

	return max(1, n)
}

func stateOf(status *v1alpha1.HostFleetStatus) rollout.State {
	has := drift.Desired{Hash: status.HostConfigHash, OSVersion: status.MacOSVersion}
	out := rollout.State{
		Hash: has.Target(), LastPermit: status.LastPermit,
		StoppedHash: status.StoppedHash, StoppedReason: status.StoppedReason,
	}

	if status.RolloutStarted != nil {
		out.Started = status.RolloutStarted.Time
	}

	if status.StoppedAt != nil {
		out.StoppedAt = status.StoppedAt.Time
	}

	for _, p := range status.Permits {
		out.Permits = append(out.Permits, rollout.Permit{Host: p.Host, Number: p.Number, Hash: p.Hash, What: drift.Action(p.What)})
	}

	return out
}

func write(status *v1alpha1.HostFleetStatus, state rollout.State, desired drift.Desired, report rollout.Report) {
	status.HostConfigHash, status.MacOSVersion, status.LastPermit = desired.Hash, desired.OSVersion, state.LastPermit
	status.StoppedHash, status.StoppedReason = state.StoppedHash, state.StoppedReason
	status.RolloutStarted, status.StoppedAt = moment(state.Started), moment(state.StoppedAt)
	status.Permits = nil

	for _, p := range state.Permits {
		status.Permits = append(status.Permits, v1alpha1.HostPermit{Host: p.Host, Number: p.Number, Hash: p.Hash, What: string(p.What)})
	}

	status.Hosts, status.Converged, status.Drifted = count(report.Hosts), count(report.Converged), count(report.Drifted)
	status.Failed, status.Unreachable = count(report.Failed), count(report.Unreachable)
}

func count(n int) int32 { return int32(n) } //nolint:gosec // G115: hosts are no billions

// moment is a time as the API keeps it, in whole seconds; nil for none.
func moment(at time.Time) *metav1.Time {
	if at.IsZero() {
		return nil
	}

	return new(metav1.NewTime(at).Rfc3339Copy())
}
