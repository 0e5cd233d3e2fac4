// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hyperfleet/hyperfleet/runners/demand"
)

func getStartTime() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }

func newClaim(name string, state demand.ClaimState, ago time.Duration) demand.Claim {
	return demand.Claim{Name: name, State: state, CreatedAt: getStartTime().Add(-ago), IdleSince: getStartTime().Add(-ago)}
}

func newClaims(n int, state demand.ClaimState) []demand.Claim {
	out := make([]demand.Claim, 0, n)
	for i := range n {
		out = append(out, newClaim(string(state)+"-"+string(rune('a'+i)), state, time.Minute))
	}

	return out
}

func newDeletions(reason string, names ...string) []demand.Deletion {
	out := make([]demand.Deletion, 0, len(names))
	for _, name := range names {
		out = append(out, demand.Deletion{Name: name, Reason: reason})
	}

	return out
}

func markOutdated(list []demand.Claim) []demand.Claim {
	for i := range list {
		list[i].Outdated = true
	}

	return list
}

func markBound(list []demand.Claim) []demand.Claim {
	for i := range list {
		list[i].Bound = true
	}

	return list
}

func TestDesired(t *testing.T) {
	t.Parallel()

	const delay = 5 * time.Minute

	mix := func(lists ...[]demand.Claim) []demand.Claim {
		var out []demand.Claim
		for _, list := range lists {
			out = append(out, list...)
		}

		return out
	}

	tests := map[string]struct {
		in   demand.Input
		want demand.Decision
	}{
		"nothing to do": {
			in:   demand.Input{Max: 10},
			want: demand.Decision{Reason: demand.ReasonSteady},
		},
		"one machine per queued job": {
			in:   demand.Input{Max: 10, Queued: 3},
			want: demand.Decision{Desired: 3, Create: 3, Reason: demand.ReasonScalingUp},
		},
		"without jobs the minimum is kept": {
			in:   demand.Input{Min: 2, Max: 10},
			want: demand.Decision{Desired: 2, Create: 2, Reason: demand.ReasonScalingUp},
		},
		"the maximum limits the number": {
			in:   demand.Input{Max: 4, Queued: 9},
			want: demand.Decision{Desired: 4, Create: 4, Reason: demand.ReasonScalingUp},
		},
		"at the maximum jobs wait": {
			in:   demand.Input{Max: 2, Queued: 3, Claims: newClaims(2, demand.ClaimBusy)},
			want: demand.Decision{Desired: 2, Reason: demand.ReasonAtMaximum},
		},
		"booting machines count for queued jobs": {
			in: demand.Input{Max: 10, Queued: 3, Claims: mix(
				newClaims(1, demand.ClaimPending), newClaims(1, demand.ClaimBooting), newClaims(1, demand.ClaimIdle))},
			want: demand.Decision{Desired: 3, Reason: demand.ReasonSteady},
		},
		"busy machines don't count for queued jobs": {
			in:   demand.Input{Max: 10, Queued: 2, Claims: newClaims(3, demand.ClaimBusy)},
			want: demand.Decision{Desired: 5, Create: 2, Reason: demand.ReasonScalingUp},
		},
		"finishing machines use capacity but take no job": {
			in:   demand.Input{Max: 3, Queued: 3, Claims: newClaims(2, demand.ClaimFinishing)},
			want: demand.Decision{Desired: 3, Create: 1, Reason: demand.ReasonScalingUp},
		},
		"no capacity until finished machines are deleted": {
			in:   demand.Input{Max: 2, Queued: 1, Claims: newClaims(2, demand.ClaimFinishing)},
			want: demand.Decision{Desired: 1, Reason: demand.ReasonWaitingForDeletion},
		},
		"idle machines are kept during the delay": {
			in:   demand.Input{Max: 3, ScaleDownDelay: delay, Claims: newClaims(1, demand.ClaimIdle)},
			want: demand.Decision{Reason: demand.ReasonIdleSurplus, RequeueAfter: delay - time.Minute},
		},
		"only the surplus is deleted, the longest idle first": {
			in: demand.Input{Min: 1, Max: 3, ScaleDownDelay: delay, Claims: []demand.Claim{
				newClaim("young", demand.ClaimIdle, 6*time.Minute), newClaim("old", demand.ClaimIdle, 9*time.Minute),
			}},
			want: demand.Decision{Desired: 1, Delete: newDeletions(demand.DeleteSurplus, "old"), Reason: demand.ReasonScalingDown},
		},
		"an idle machine is kept for the job that is queued": {
			in: demand.Input{Max: 3, Queued: 1, Claims: []demand.Claim{
				newClaim("idle", demand.ClaimIdle, time.Hour), newClaim("new", demand.ClaimBooting, time.Second),
			}},
			want: demand.Decision{Desired: 1, Reason: demand.ReasonIdleSurplus},
		},
		"a lowered maximum never ends busy machines": {
			in:   demand.Input{Max: 1, Claims: newClaims(3, demand.ClaimBusy)},
			want: demand.Decision{Desired: 1, Reason: demand.ReasonIdleSurplus},
		},
		"an idle timeout replaces a machine of the minimum": {
			in: demand.Input{Min: 1, Max: 5, IdleTimeout: delay, Claims: []demand.Claim{newClaim("stale", demand.ClaimIdle, delay)}},
			want: demand.Decision{
				Desired: 1, Create: 1, Delete: newDeletions(demand.DeleteIdleTimeout, "stale"), Reason: demand.ReasonReplacing,
			},
		},
		"the replacement waits for capacity": {
			in: demand.Input{Min: 1, Max: 1, IdleTimeout: delay, Claims: []demand.Claim{newClaim("stale", demand.ClaimIdle, delay)}},
			want: demand.Decision{
				Desired: 1, Delete: newDeletions(demand.DeleteIdleTimeout, "stale"), Reason: demand.ReasonWaitingForDeletion,
			},
		},
		"an idle timeout sets the requeue time": {
			in:   demand.Input{Min: 1, Max: 1, IdleTimeout: delay, Claims: newClaims(1, demand.ClaimIdle)},
			want: demand.Decision{Desired: 1, Reason: demand.ReasonSteady, RequeueAfter: delay - time.Minute},
		},
		"a lifetime ends machines that are not busy": {
			in: demand.Input{Max: 5, MaxLifetime: time.Hour, Claims: []demand.Claim{
				newClaim("idle", demand.ClaimIdle, time.Hour), newClaim("booting", demand.ClaimBooting, time.Hour),
				newClaim("busy", demand.ClaimBusy, 2*time.Hour),
			}},
			want: demand.Decision{
				Desired: 1, Delete: newDeletions(demand.DeleteMaxLifetime, "idle", "booting"), Reason: demand.ReasonReplacing,
			},
		},
		"a failure delays new machines": {
			in:   demand.Input{Max: 5, Queued: 2, Failures: 2, LastFailure: getStartTime().Add(-time.Second)},
			want: demand.Decision{Desired: 2, Reason: demand.ReasonBackingOff, RequeueAfter: time.Second},
		},
		"after few failures all machines are created": {
			in:   demand.Input{Max: 5, Queued: 2, Failures: 2, LastFailure: getStartTime().Add(-time.Minute)},
			want: demand.Decision{Desired: 2, Create: 2, Reason: demand.ReasonScalingUp},
		},
		"after many failures one machine is created": {
			in:   demand.Input{Max: 5, Queued: 4, Failures: 3, LastFailure: getStartTime().Add(-time.Minute)},
			want: demand.Decision{Desired: 4, Create: 1, Reason: demand.ReasonBackingOff},
		},
		"no second machine while the first one starts": {
			in: demand.Input{
				Max: 5, Queued: 4, Failures: 3, LastFailure: getStartTime().Add(-time.Minute), Claims: newClaims(1, demand.ClaimBooting),
			},
			want: demand.Decision{Desired: 4, Reason: demand.ReasonBackingOff},
		},
		"warm machines are kept in addition to those for jobs": {
			in:   demand.Input{Max: 10, WarmIdle: 2, Queued: 1, Claims: newClaims(3, demand.ClaimBusy)},
			want: demand.Decision{Desired: 6, Create: 3, Reason: demand.ReasonScalingUp},
		},
		"the maximum includes warm machines": {
			in:   demand.Input{Max: 4, WarmIdle: 3, Claims: newClaims(3, demand.ClaimBusy)},
			want: demand.Decision{Desired: 4, Create: 1, Reason: demand.ReasonScalingUp},
		},
		"a minimum and warm machines do not add up": {
			in:   demand.Input{Min: 2, Max: 9, WarmIdle: 3},
			want: demand.Decision{Desired: 3, Create: 3, Reason: demand.ReasonScalingUp},
		},
		"machines are created for standby": {
			in:   demand.Input{Max: 5, WarmStopped: 2},
			want: demand.Decision{CreateStandby: 2, Reason: demand.ReasonScalingUp},
		},
		"standby machines are started first, oldest first, and recreated": {
			in: demand.Input{Max: 9, WarmStopped: 2, Queued: 3, Claims: []demand.Claim{
				newClaim("young", demand.ClaimStandby, time.Minute), newClaim("old", demand.ClaimStandby, time.Hour),
			}},
			want: demand.Decision{
				Desired: 3, Activate: []string{"old", "young"}, Create: 1, CreateStandby: 2, Reason: demand.ReasonScalingUp,
			},
		},
		"one standby machine is enough": {
			in: demand.Input{Max: 9, WarmStopped: 2, Queued: 1, Claims: []demand.Claim{
				newClaim("young", demand.ClaimStandby, time.Minute), newClaim("old", demand.ClaimStandby, time.Hour),
			}},
			want: demand.Decision{Desired: 1, Activate: []string{"old"}, CreateStandby: 1, Reason: demand.ReasonScalingUp},
		},
		"at the maximum a standby machine is started instead of a new one": {
			in: demand.Input{Max: 3, WarmStopped: 1, Queued: 1, Claims: mix(
				newClaims(2, demand.ClaimBusy), newClaims(1, demand.ClaimStandby))},
			want: demand.Decision{Desired: 3, Activate: []string{"standby-a"}, Reason: demand.ReasonScalingUp},
		},
		"jobs take precedence over standby": {
			in:   demand.Input{Max: 3, WarmStopped: 2, Queued: 2, Claims: newClaims(1, demand.ClaimFinishing)},
			want: demand.Decision{Desired: 2, Create: 2, Reason: demand.ReasonScalingUp},
		},
		"surplus standby machines are deleted, the youngest first": {
			in: demand.Input{Max: 9, WarmStopped: 1, Claims: []demand.Claim{
				newClaim("young", demand.ClaimStandby, time.Minute), newClaim("old", demand.ClaimStandby, time.Hour),
			}},
			want: demand.Decision{Delete: newDeletions(demand.DeleteSurplus, "young"), Reason: demand.ReasonSteady},
		},
		"a standby machine that is too old is replaced": {
			in: demand.Input{
				Max: 9, WarmStopped: 1, MaxLifetime: time.Hour, Claims: []demand.Claim{newClaim("old", demand.ClaimStandby, time.Hour)},
			},
			want: demand.Decision{
				Delete: newDeletions(demand.DeleteMaxLifetime, "old"), CreateStandby: 1, Reason: demand.ReasonReplacing,
			},
		},
		"while machines fail no standby machine is created": {
			in:   demand.Input{Max: 9, WarmStopped: 1, Failures: 1, LastFailure: getStartTime()},
			want: demand.Decision{Reason: demand.ReasonSteady},
		},
		"after many failures one standby machine is started": {
			in: demand.Input{
				Max: 5, Queued: 4, WarmStopped: 2, Failures: 3, LastFailure: getStartTime().Add(-time.Minute),
				Claims: newClaims(2, demand.ClaimStandby),
			},
			want: demand.Decision{Desired: 4, Activate: []string{"standby-a"}, Reason: demand.ReasonBackingOff},
		},
		"paused: nothing happens": {
			in: demand.Input{
				Max: 9, Queued: 3, WarmStopped: 2, Paused: true, IdleTimeout: time.Second, MaxLifetime: time.Second,
				Claims: mix(markOutdated(newClaims(2, demand.ClaimIdle)), newClaims(1, demand.ClaimStandby)),
			},
			want: demand.Decision{Desired: 3, Reason: demand.ReasonPaused},
		},
		"a quarter of the outdated machines is replaced at a time, the longest idle first": {
			in: demand.Input{Min: 8, Max: 20, Claims: markOutdated(newClaims(8, demand.ClaimIdle))},
			want: demand.Decision{
				Desired: 8, Create: 2, Delete: newDeletions(demand.DeleteOutdated, "idle-a", "idle-b"), Reason: demand.ReasonReplacing,
			},
		},
		"no more are deleted while replacements start": {
			in: demand.Input{Min: 8, Max: 20, Claims: mix(
				markOutdated(newClaims(6, demand.ClaimIdle)), newClaims(1, demand.ClaimBooting), newClaims(1, demand.ClaimPending))},
			want: demand.Decision{Desired: 8, Reason: demand.ReasonSteady},
		},
		"at least one is replaced": {
			in: demand.Input{Min: 1, Max: 1, Claims: markOutdated(newClaims(1, demand.ClaimIdle))},
			want: demand.Decision{
				Desired: 1, Delete: newDeletions(demand.DeleteOutdated, "idle-a"), Reason: demand.ReasonWaitingForDeletion,
			},
		},
		"outdated machines with a job or bound to a job stay": {
			in: demand.Input{Max: 9, Queued: 2, Claims: mix(
				markOutdated(newClaims(2, demand.ClaimBusy)), markBound(markOutdated(newClaims(2, demand.ClaimBooting))))},
			want: demand.Decision{Desired: 4, Reason: demand.ReasonSteady},
		},
		"an outdated idle machine stays for the job that is queued": {
			in:   demand.Input{Max: 9, Queued: 1, Claims: markOutdated(newClaims(1, demand.ClaimIdle))},
			want: demand.Decision{Desired: 1, Reason: demand.ReasonSteady},
		},
		"an outdated machine that boots is replaced": {
			in: demand.Input{Max: 9, Queued: 1, Claims: markOutdated(newClaims(1, demand.ClaimBooting))},
			want: demand.Decision{
				Desired: 1, Create: 1, Delete: newDeletions(demand.DeleteOutdated, "booting-a"), Reason: demand.ReasonReplacing,
			},
		},
		"an outdated standby machine is replaced and not started": {
			in: demand.Input{Max: 9, Queued: 1, WarmStopped: 1, Claims: markOutdated(newClaims(1, demand.ClaimStandby))},
			want: demand.Decision{
				Desired: 1, Create: 1, CreateStandby: 1, Delete: newDeletions(demand.DeleteOutdated, "standby-a"),
				Reason: demand.ReasonReplacing,
			},
		},
		"idle machines are not replaced while machines fail": {
			in: demand.Input{
				Min: 1, Max: 9, Failures: 3, LastFailure: getStartTime().Add(-time.Hour), Claims: markOutdated(newClaims(1, demand.ClaimIdle)),
			},
			want: demand.Decision{Desired: 1, Reason: demand.ReasonSteady},
		},
		"a machine that waits for capacity is created elsewhere": {
			in: demand.Input{Max: 9, Queued: 2, Claims: []demand.Claim{
				{Name: "stuck", State: demand.ClaimPending, CreatedAt: getStartTime(), StuckReason: demand.DeleteNoCapacity}, newClaim("other", demand.ClaimBooting, 0),
			}},
			want: demand.Decision{
				Desired: 2, Create: 1, Delete: newDeletions(demand.DeleteNoCapacity, "stuck"), Reason: demand.ReasonReplacing,
			},
		},
		"a machine that waits for an earlier one of its name is kept and counts for no job": {
			in: demand.Input{Max: 9, Queued: 2, Claims: []demand.Claim{
				{Name: "stuck", State: demand.ClaimPending, CreatedAt: getStartTime(), StuckReason: demand.StuckNamesake}, newClaim("other", demand.ClaimBooting, 0),
			}},
			want: demand.Decision{Desired: 2, Create: 1, Reason: demand.ReasonScalingUp},
		},
		"a machine for standby that waits for an earlier one of its name is kept, and the standby gets another": {
			in: demand.Input{Max: 9, WarmStopped: 1, Claims: []demand.Claim{
				{Name: "stuck", State: demand.ClaimStandby, CreatedAt: getStartTime(), StuckReason: demand.StuckNamesake},
			}},
			want: demand.Decision{CreateStandby: 1, Reason: demand.ReasonScalingUp},
		},
		"a prepared machine on standby that cannot be started is kept, and a job gets a new machine": {
			in: demand.Input{Max: 9, Queued: 1, WarmStopped: 1, Claims: []demand.Claim{
				{Name: "stuck", State: demand.ClaimStandby, CreatedAt: getStartTime(), Prepared: true, StuckReason: demand.DeleteNotReady},
			}},
			want: demand.Decision{Desired: 1, Create: 1, Reason: demand.ReasonScalingUp},
		},
		"a prepared machine on standby that cannot be started is deleted for a job at the maximum": {
			in: demand.Input{Max: 3, Queued: 1, WarmStopped: 3, Claims: []demand.Claim{
				{Name: "a", State: demand.ClaimStandby, CreatedAt: getStartTime(), Prepared: true, StuckReason: demand.DeleteNotReady},
				{Name: "b", State: demand.ClaimStandby, CreatedAt: getStartTime(), Prepared: true, StuckReason: demand.DeleteNotReady},
				{Name: "c", State: demand.ClaimStandby, CreatedAt: getStartTime(), Prepared: true, StuckReason: demand.DeleteNotReady},
			}},
			want: demand.Decision{
				Desired: 1, Delete: newDeletions(demand.DeleteNotReady, "a"), Reason: demand.ReasonWaitingForDeletion,
			},
		},
		"a machine that waits for an earlier one of its name makes no room for the job": {
			in: demand.Input{Max: 2, Queued: 1, WarmStopped: 1, Claims: []demand.Claim{
				{Name: "a", State: demand.ClaimPending, CreatedAt: getStartTime(), StuckReason: demand.StuckNamesake},
				{Name: "b", State: demand.ClaimStandby, CreatedAt: getStartTime(), Prepared: true, StuckReason: demand.DeleteNotReady},
			}},
			want: demand.Decision{
				Desired: 1, Delete: newDeletions(demand.DeleteNotReady, "b"), Reason: demand.ReasonWaitingForDeletion,
			},
		},
		"machines that are being deleted make room for the job": {
			in: demand.Input{Max: 3, Queued: 1, WarmStopped: 3, Claims: []demand.Claim{
				{Name: "a", State: demand.ClaimFinishing, CreatedAt: getStartTime()},
				{Name: "b", State: demand.ClaimStandby, CreatedAt: getStartTime(), Prepared: true, StuckReason: demand.DeleteNotReady},
				{Name: "c", State: demand.ClaimStandby, CreatedAt: getStartTime(), Prepared: true, StuckReason: demand.DeleteNotReady},
			}},
			want: demand.Decision{Desired: 1, Reason: demand.ReasonWaitingForDeletion},
		},
		"machines that end on an unreachable node do not count against the maximum": {
			in: demand.Input{Max: 2, Queued: 1, Claims: []demand.Claim{
				{Name: "a", State: demand.ClaimFinishing, CreatedAt: getStartTime(), Unreachable: true},
				{Name: "b", State: demand.ClaimFinishing, CreatedAt: getStartTime(), Unreachable: true},
			}},
			want: demand.Decision{Desired: 1, Create: 1, Reason: demand.ReasonScalingUp},
		},
		"machines that run on an unreachable node count against the maximum": {
			in: demand.Input{Max: 2, Queued: 1, Claims: []demand.Claim{
				{Name: "a", State: demand.ClaimBusy, CreatedAt: getStartTime(), Unreachable: true},
				{Name: "b", State: demand.ClaimBusy, CreatedAt: getStartTime(), Unreachable: true},
			}},
			want: demand.Decision{Desired: 2, Reason: demand.ReasonAtMaximum},
		},
		"a machine that was not started on an unreachable node is deleted": {
			in: demand.Input{Max: 2, Queued: 1, Claims: []demand.Claim{
				{Name: "a", State: demand.ClaimBooting, CreatedAt: getStartTime(), Unreachable: true, StuckReason: demand.DeleteUnreachable},
			}},
			want: demand.Decision{
				Desired: 1, Create: 1, Delete: newDeletions(demand.DeleteUnreachable, "a"), Reason: demand.ReasonReplacing,
			},
		},
		"an idle machine that is bound to a job counts for it": {
			in:   demand.Input{Max: 9, Queued: 1, Claims: markBound(newClaims(1, demand.ClaimIdle))},
			want: demand.Decision{Desired: 1, Reason: demand.ReasonSteady},
		},
		"a schedule boundary sets the requeue time": {
			in:   demand.Input{Max: 9, Boundary: getStartTime().Add(time.Minute)},
			want: demand.Decision{Reason: demand.ReasonSteady, RequeueAfter: time.Minute},
		},
		"negative numbers count as 0": {
			in:   demand.Input{Min: -1, Max: -1, Queued: -4, WarmIdle: -1, WarmStopped: -1},
			want: demand.Decision{Reason: demand.ReasonSteady},
		},
	}

	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			test.in.Now = getStartTime()
			got := demand.Decide(test.in)

			if got.Message == "" {
				t.Error("the decision has no message")
			}

			ignore := cmp.Options{
				cmpopts.IgnoreFields(demand.Decision{}, "Message"), cmpopts.IgnoreFields(demand.Deletion{}, "Message"),
				cmpopts.EquateEmpty(),
			}
			if diff := cmp.Diff(test.want, got, ignore); diff != "" {
				t.Errorf("Desired (-want +got):\n%s", diff)
			}
		})
	}
}

func TestBackoff(t *testing.T) {
	t.Parallel()

	for failures, want := range map[int]time.Duration{
		-1: 0, 0: 0, 1: time.Second, 2: 2 * time.Second, 5: 16 * time.Second, 9: 256 * time.Second, 10: 5 * time.Minute, 1 << 30: 5 * time.Minute,
	} {
		if got := demand.Backoff(failures); got != want {
			t.Errorf("Backoff(%d) = %s, want %s", failures, got, want)
		}
	}
}
