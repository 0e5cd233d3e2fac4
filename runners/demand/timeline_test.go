// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/demand"
	"github.com/hyperfleet/hyperfleet/workload"
)

// addSeconds returns the time that is the given number of seconds after the start time of the tests.
func addSeconds(seconds float64) time.Time {
	return getStartTime().Add(time.Duration(seconds * float64(time.Second)))
}

func newTimeAt(seconds int) *metav1.Time { return &metav1.Time{Time: addSeconds(float64(seconds))} }

func newMicroTimeAt(seconds float64) *metav1.MicroTime {
	out := metav1.NewMicroTime(addSeconds(seconds))

	return &out
}

// newFinishedMachine returns a machine that has run the job, with all its times.
func newFinishedMachine() *demand.Machine {
	return &demand.Machine{
		Name: "linux-a", VM: "105", Node: "pve1", Runner: "linux-a-1", Job: "gh-7",
		Times: v1alpha1.MachineTimes{
			Cloned: newMicroTimeAt(4.5), Started: newMicroTimeAt(6), Ready: newMicroTimeAt(18.5), JobStarted: newMicroTimeAt(20.5),
			Stopped: newMicroTimeAt(63), Ended: newMicroTimeAt(63),
		},
		EndReason: "JobDone",
	}
}

// formatTimeline formats a timeline as seconds, moment and message.
func formatTimeline(timeline []v1alpha1.JobEvent) []string {
	out := make([]string, 0, len(timeline))
	for _, e := range timeline {
		out = append(out, strings.TrimSpace(fmt.Sprintf("%g %s %s", e.Time.Sub(getStartTime()).Seconds(), e.Moment, e.Message)))
	}

	return out
}

func newJobWithTimes(state v1alpha1.JobState, edits ...func(*workload.Job)) workload.Job {
	return newJob(state, append([]func(*workload.Job){func(j *workload.Job) {
		j.QueuedAt, j.ReceivedAt = newTimeAt(0), newMicroTimeAt(1.25)
		if state == v1alpha1.JobRunning || state == v1alpha1.JobCompleted {
			j.RunnerName, j.StartedAt = "linux-a-1", newTimeAt(20)
		}

		if state == v1alpha1.JobCompleted {
			j.CompletedAt, j.Conclusion = newTimeAt(60), "success"
		}
	}}, edits...)...)
}

func TestTimeline(t *testing.T) {
	t.Parallel()

	cause := func(reason string) demand.Cause { return demand.Cause{Reason: reason, Message: "because"} }
	deletions := func(m *demand.Machine) *demand.Machine { m.DeletedAt = addSeconds(66); return m }
	cases := map[string]struct {
		inputs []demand.TimelineInput
		want   []string
	}{
		"a queued job": {
			[]demand.TimelineInput{{Job: newJobWithTimes(v1alpha1.JobQueued), Pool: "linux", Now: addSeconds(2)}},
			[]string{"0 Queued", "1.25 Received", "2 Decided RunnerPool linux serves the job"},
		},
		"a complete lifecycle": {
			[]demand.TimelineInput{
				{Job: newJobWithTimes(v1alpha1.JobQueued), Pool: "linux", Now: addSeconds(2)},
				{Job: newJobWithTimes(v1alpha1.JobRunning), Pool: "linux", Machine: newFinishedMachine(), Now: addSeconds(21)},
				{Job: newJobWithTimes(v1alpha1.JobCompleted), Machine: newFinishedMachine(), Now: addSeconds(61)},
				{Job: newJobWithTimes(v1alpha1.JobCompleted), Machine: deletions(newFinishedMachine()), Now: addSeconds(66)},
				{Job: newJobWithTimes(v1alpha1.JobCompleted), Now: addSeconds(99)},
			},
			[]string{
				"0 Queued", "1.25 Received", "2 Decided RunnerPool linux serves the job",
				"4.5 Cloned MachineClaim linux-a: VM 105 on node pve1", "6 Booted MachineClaim linux-a: VM 105 on node pve1",
				"18.5 Registered MachineClaim linux-a: runner linux-a-1", "20 Started runner linux-a-1", "60 Finished success",
				"66 Destroyed MachineClaim linux-a: VM 105 is gone: JobDone",
			},
		},
		"everything at once, late": {
			[]demand.TimelineInput{{Job: newJobWithTimes(v1alpha1.JobCompleted), Machine: deletions(newFinishedMachine()), Now: addSeconds(99)}},
			[]string{
				"0 Queued", "1.25 Received",
				"4.5 Cloned MachineClaim linux-a: VM 105 on node pve1", "6 Booted MachineClaim linux-a: VM 105 on node pve1",
				"18.5 Registered MachineClaim linux-a: runner linux-a-1", "20 Started runner linux-a-1", "60 Finished success",
				"66 Destroyed MachineClaim linux-a: VM 105 is gone: JobDone",
			},
		},
		"no pool, then a pool at its maximum, then none again": {
			[]demand.TimelineInput{
				{Job: newJobWithTimes(v1alpha1.JobQueued), Cause: cause("NoPool"), Now: addSeconds(2)},
				{Job: newJobWithTimes(v1alpha1.JobQueued), Cause: cause("NoPool"), Now: addSeconds(3)},
				{Job: newJobWithTimes(v1alpha1.JobQueued), Pool: "linux", Cause: cause("AtMaximum"), Now: addSeconds(4)},
				{Job: newJobWithTimes(v1alpha1.JobQueued), Pool: "linux", Cause: cause("AtMaximum"), Now: addSeconds(5)},
				{Job: newJobWithTimes(v1alpha1.JobQueued), Cause: cause("NoPool"), Now: addSeconds(6)},
			},
			[]string{
				"0 Queued", "1.25 Received", "2 Waiting NoPool: because", "4 Waiting AtMaximum: because",
				"4 Decided RunnerPool linux serves the job", "6 Waiting NoPool: because",
			},
		},
		"the message of one cause changes": {
			[]demand.TimelineInput{
				{Job: newJobWithTimes(v1alpha1.JobQueued), Cause: demand.Cause{Reason: "TemplateNotReady", Message: "a"}, Now: addSeconds(2)},
				{Job: newJobWithTimes(v1alpha1.JobQueued), Cause: demand.Cause{Reason: "TemplateNotReady", Message: "b"}, Now: addSeconds(3)},
			},
			[]string{"0 Queued", "1.25 Received", "2 Waiting TemplateNotReady: b"},
		},
		"a running job waits for nothing": {
			[]demand.TimelineInput{{Job: newJobWithTimes(v1alpha1.JobRunning), Cause: cause("AtMaximum"), Now: addSeconds(30)}},
			[]string{"0 Queued", "1.25 Received", "20 Started runner linux-a-1"},
		},
		"cancelled before it ran": {
			[]demand.TimelineInput{{Job: newJobWithTimes(v1alpha1.JobCompleted, func(j *workload.Job) {
				j.RunnerName, j.Conclusion = "", "cancelled"
			}), Now: addSeconds(61)}},
			[]string{"0 Queued", "1.25 Received", "60 Finished cancelled"},
		},
		"the platform's whole seconds do not put the start before the runner": {
			[]demand.TimelineInput{{
				Job:     newJobWithTimes(v1alpha1.JobRunning),
				Machine: &demand.Machine{Name: "a", Runner: "r", Times: v1alpha1.MachineTimes{Started: newMicroTimeAt(20.1), Ready: newMicroTimeAt(20.7)}}, Now: addSeconds(21),
			}},
			[]string{
				"0 Queued", "1.25 Received", "20.1 Booted MachineClaim a:", "20.7 Registered MachineClaim a: runner r",
				"20 Started runner linux-a-1",
			},
		},
		"a warm machine is older than its job": {
			[]demand.TimelineInput{{
				Job:     newJobWithTimes(v1alpha1.JobRunning),
				Machine: &demand.Machine{Name: "a", VM: "7", Times: v1alpha1.MachineTimes{Started: newMicroTimeAt(-30), Activated: newMicroTimeAt(-31), Cloned: newMicroTimeAt(-60)}}, Now: addSeconds(21),
			}},
			[]string{
				"-60 Cloned MachineClaim a: VM 7", "-30 Booted MachineClaim a: VM 7, from standby", "0 Queued", "1.25 Received",
				"20 Started runner linux-a-1",
			},
		},
		"the machine reports the start before the platform does": {
			[]demand.TimelineInput{
				{Job: newJobWithTimes(v1alpha1.JobQueued), Machine: &demand.Machine{Name: "a", Runner: "r", Times: v1alpha1.MachineTimes{JobStarted: newMicroTimeAt(19.5)}}, Now: addSeconds(20)},
			},
			[]string{"0 Queued", "1.25 Received", "19.5 Started runner r"},
		},
		"a machine for the job fails, and another runs it": {
			[]demand.TimelineInput{
				{Job: newJobWithTimes(v1alpha1.JobQueued), Pool: "p", Machine: &demand.Machine{Name: "a", VM: "1", Times: v1alpha1.MachineTimes{Cloned: newMicroTimeAt(3)}}, Now: addSeconds(3)},
				{Job: newJobWithTimes(v1alpha1.JobQueued), Pool: "p", Machine: &demand.Machine{
					Name: "a", VM: "1", EndReason: "BootstrapFailed", Times: v1alpha1.MachineTimes{Cloned: newMicroTimeAt(3)}, DeletedAt: addSeconds(5),
				}, Now: addSeconds(5)},
				{Job: newJobWithTimes(v1alpha1.JobQueued), Pool: "p", Machine: &demand.Machine{Name: "b", VM: "2", Times: v1alpha1.MachineTimes{Cloned: newMicroTimeAt(8)}}, Now: addSeconds(8)},
			},
			[]string{
				"0 Queued", "1.25 Received", "3 Decided RunnerPool p serves the job",
				"5 Waiting MachineLost: MachineClaim a ended before its runner took the job (BootstrapFailed): the pool creates another machine",
				"8 Cloned MachineClaim b: VM 2",
			},
		},
	}

	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var timeline []v1alpha1.JobEvent

			for _, input := range tc.inputs {
				input.Before = timeline
				timeline = demand.BuildTimeline(input)
			}

			if diff := cmp.Diff(tc.want, formatTimeline(timeline)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}

			last := tc.inputs[len(tc.inputs)-1]
			last.Before = timeline

			if diff := cmp.Diff(timeline, demand.BuildTimeline(last)); diff != "" {
				t.Errorf("built again:\n%s", diff)
			}
		})
	}
}

func TestTimelineMessagesAreBounded(t *testing.T) {
	t.Parallel()

	got := demand.BuildTimeline(demand.TimelineInput{
		Job: newJobWithTimes(v1alpha1.JobQueued), Now: addSeconds(2), Cause: demand.Cause{Reason: "Long", Message: strings.Repeat("€", 2000)},
	})
	if message := got[len(got)-1].Message; len(message) > 1024 || len(message) < 1000 || strings.ContainsRune(message, '\uFFFD') {
		t.Errorf("a message of %d bytes: %q", len(message), message)
	}
}

// newLifecycle returns a job at each stage as the platform reports it, and its machine at each stage.
func newLifecycle(rng *rand.Rand) ([]workload.Job, []*demand.Machine) {
	var times [9]float64
	for i, timestamp := 0, 0.0; i < len(times); i++ {
		timestamp += rng.Float64() * 10
		times[i] = timestamp
	}

	states := []v1alpha1.JobState{v1alpha1.JobWaiting, v1alpha1.JobQueued, v1alpha1.JobRunning, v1alpha1.JobCompleted}
	jobs := make([]workload.Job, 0, len(states))

	for _, state := range states {
		jobs = append(jobs, newJob(state, func(j *workload.Job) {
			j.QueuedAt, j.ReceivedAt = newTimeAt(int(times[0])), newMicroTimeAt(times[1])
			if state == v1alpha1.JobRunning || state == v1alpha1.JobCompleted {
				j.RunnerName, j.StartedAt = "r", newTimeAt(int(times[5]))
			}

			if state == v1alpha1.JobCompleted {
				j.CompletedAt, j.Conclusion = newTimeAt(int(times[6])), "failure"
			}
		}))
	}

	moments := []func(*demand.Machine){
		func(m *demand.Machine) { m.Times.Cloned = newMicroTimeAt(times[2]) },
		func(m *demand.Machine) { m.Times.Started = newMicroTimeAt(times[3]) },
		func(m *demand.Machine) { m.Times.Ready = newMicroTimeAt(times[4]) },
		func(m *demand.Machine) { m.Times.JobStarted, m.Job = newMicroTimeAt(times[5]), "gh-7" },
		func(m *demand.Machine) {
			m.Times.Stopped, m.Times.Ended, m.EndReason = newMicroTimeAt(times[7]), newMicroTimeAt(times[7]), "JobDone"
		},
		func(m *demand.Machine) { m.DeletedAt = addSeconds(times[8]) },
	}
	machines := []*demand.Machine{nil}

	for i := range moments {
		m := &demand.Machine{Name: "a", VM: "1", Runner: "r"}
		for _, set := range moments[:i+1] {
			set(m)
		}

		machines = append(machines, m)
	}

	return jobs, machines
}

// Feature: hyperfleet-operator, Property 18: Observability and Events.
func TestPropertyTimeline(t *testing.T) {
	t.Parallel()

	checkProperty(t, "any order of news ends in the same timeline, and loses no moment on the way", prop.ForAll(
		func(seed int64) string {
			rng := rand.New(rand.NewPCG(uint64(seed), 1))
			jobs, machines := newLifecycle(rng)
			want := demand.BuildTimeline(demand.TimelineInput{Job: jobs[len(jobs)-1], Machine: machines[len(machines)-1], Now: addSeconds(1000)})

			var (
				timeline []v1alpha1.JobEvent
				known    workload.Job
			)

			// Each update arrives at least once, and some arrive again. Updates of a machine may be stale.
			order := rng.Perm(len(jobs) + len(machines))
			order = append(order, rng.Perm(len(jobs) + len(machines))[:rng.IntN(8)]...)

			for i, n := range order {
				var machine *demand.Machine
				if n < len(jobs) {
					known, _ = demand.Merge(known, jobs[n])
				} else {
					machine = machines[n-len(jobs)]
				}

				if known.ID == "" {
					// No RunnerJob exists before the platform's first report.
					known = jobs[0]
				}

				next := demand.BuildTimeline(demand.TimelineInput{Job: known, Before: timeline, Machine: machine, Now: addSeconds(100 + float64(i))})
				if why := findLostMoment(timeline, next); why != "" {
					return why
				}

				timeline = next
			}

			// The last reconcile has the complete state, as after a restart of the operator.
			timeline = demand.BuildTimeline(demand.TimelineInput{
				Job: known, Before: timeline, Machine: machines[len(machines)-1], Now: addSeconds(500),
			})

			return cmp.Diff(formatTimeline(want), formatTimeline(timeline))
		}, gen.Int64()))

	checkProperty(t, "causes are kept within bounds, the first and the last always", prop.ForAll(
		func(seed int64) string {
			rng := rand.New(rand.NewPCG(uint64(seed), 2))

			var timeline []v1alpha1.JobEvent

			first, last := "", ""

			for i := range 1 + rng.IntN(100) {
				cause := demand.Cause{Reason: fmt.Sprintf("R%d", rng.IntN(5)), Message: "m"}
				if rng.IntN(4) == 0 {
					cause = demand.Cause{}
				}

				timeline = demand.BuildTimeline(demand.TimelineInput{Job: newJobWithTimes(v1alpha1.JobQueued), Before: timeline, Cause: cause, Now: addSeconds(float64(i + 2))})

				if cause.Reason != "" {
					last = cause.Reason + ": m"
					if first == "" {
						first = last
					}
				}
			}

			var waits []string

			for _, e := range timeline {
				if e.Moment == v1alpha1.MomentWaiting {
					waits = append(waits, e.Message)
				}
			}

			switch {
			case len(waits) > 16 || len(timeline) > 64:
				return fmt.Sprintf("%d causes in %d moments", len(waits), len(timeline))
			case first != "" && (waits[0] != first || waits[len(waits)-1] != last):
				return fmt.Sprintf("first %s, last %s in %v", first, last, waits)
			default:
				return findDisorder(timeline)
			}
		}, gen.Int64()))
}

// findLostMoment returns the moment of a timeline that its successor lacks.
func findLostMoment(previous, current []v1alpha1.JobEvent) string {
	for _, e := range previous {
		if !slices.ContainsFunc(current, func(a v1alpha1.JobEvent) bool { return a.Moment == e.Moment }) {
			return fmt.Sprintf("%s is lost", e.Moment)
		}
	}

	return findDisorder(current)
}

// findDisorder describes where a timeline is not ordered by its seconds, or has a moment twice.
func findDisorder(timeline []v1alpha1.JobEvent) string {
	seen := map[v1alpha1.JobMoment]bool{}

	for i, e := range timeline {
		if i > 0 && e.Time.Truncate(time.Second).Before(timeline[i-1].Time.Truncate(time.Second)) {
			return fmt.Sprintf("%s is after its successor", timeline[i-1].Moment)
		}

		if seen[e.Moment] && e.Moment != v1alpha1.MomentWaiting {
			return fmt.Sprintf("%s is there twice", e.Moment)
		}

		seen[e.Moment] = true
	}

	return ""
}
