// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/workload"
)

func newEpoch() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

func newEmptyTally() tally {
	return newTally(7, "https://github.com/octo-org", workload.Job{
		Platform: v1alpha1.WorkloadGitHubActions, Queue: "set", Organization: "octo-org",
	})
}

// tallyFixture contains the real jobs, the tally that receives unreliable messages about them, and a ledger.
type tallyFixture struct {
	t         *tally
	now       time.Time
	jobs      map[string]v1alpha1.JobState // the real state of jobs that are not completed
	delayed   []jobUpdate
	ledger    map[string]v1alpha1.JobState
	generator *rand.Rand
	next      int
	session   int
	// These are the faults of the message delivery.
	loses, delays, repeats, forgets bool
}

func newTallyFixture(seed uint64) *tallyFixture {
	fresh := newEmptyTally()
	w := &tallyFixture{
		t: &fresh, now: newEpoch(), jobs: map[string]v1alpha1.JobState{}, ledger: map[string]v1alpha1.JobState{},
		generator: rand.New(rand.NewPCG(seed, 1)),
	}
	w.reconnect()

	return w
}

func (w *tallyFixture) count(state v1alpha1.JobState) int {
	n := 0

	for _, have := range w.jobs {
		if have == state {
			n++
		}
	}

	return n
}

func (w *tallyFixture) newStatistics() statistics {
	return statistics{Assigned: len(w.jobs), Running: w.count(v1alpha1.JobRunning)}
}

// writeJobs applies updates to the ledger: states never go back, and a job that is completed and unknown
// stays unknown.
func (w *tallyFixture) writeJobs(jobs []workload.Job) {
	order := []v1alpha1.JobState{v1alpha1.JobQueued, v1alpha1.JobRunning, v1alpha1.JobCompleted}

	for _, job := range jobs {
		have, known := w.ledger[job.ID]
		if !known && job.State == v1alpha1.JobCompleted {
			continue
		}

		if !known || slices.Index(order, job.State) > slices.Index(order, have) {
			w.ledger[job.ID] = job.State
		}
	}
}

func (w *tallyFixture) countWritten(state v1alpha1.JobState) int {
	n := 0

	for _, have := range w.ledger {
		if have == state {
			n++
		}
	}

	return n
}

func (w *tallyFixture) reconnect() {
	w.session++
	w.t.begin(fmt.Sprintf("%08d-session", w.session), w.newStatistics(), w.now)
	w.writeJobs(w.t.reconcile(notQuiet, w.now))
}

func (w *tallyFixture) deliver(updates ...jobUpdate) {
	out := w.t.applyUpdates(updates, w.now)
	w.t.observe(w.newStatistics(), w.now)
	w.writeJobs(append(out, w.t.reconcile(notQuiet, w.now)...))
}

// sendUpdates sends updates unless the faults lose or delay them.
func (w *tallyFixture) sendUpdates(n jobUpdate) {
	switch {
	case w.loses && w.generator.IntN(4) == 0:
	case w.delays && w.generator.IntN(3) == 0:
		w.delayed = append(w.delayed, n)
	default:
		w.deliver(n)

		if w.repeats && w.generator.IntN(3) == 0 {
			w.delayed = append(w.delayed, n)
		}
	}
}

func (w *tallyFixture) updates(kind, key string) jobUpdate {
	return jobUpdate{Kind: kind, JobID: key, AssignedAt: lenientTime{newEpoch()}, RunnerName: "runner", Result: "succeeded"}
}

// findJob returns one of the jobs in a state, or "".
func (w *tallyFixture) findJob(state v1alpha1.JobState) string {
	var keys []string

	for key, have := range w.jobs {
		if have == state {
			keys = append(keys, key)
		}
	}

	if len(keys) == 0 {
		return ""
	}

	slices.Sort(keys)

	return keys[w.generator.IntN(len(keys))]
}

// changeJobs makes one random change.
func (w *tallyFixture) changeJobs(what int) {
	w.now = w.now.Add(time.Duration(w.generator.IntN(40)) * time.Second)

	switch what {
	case 0, 1, 2:
		w.next++
		key := fmt.Sprintf("job-%d", w.next)
		w.jobs[key] = v1alpha1.JobQueued
		w.sendUpdates(w.updates(jobAssigned, key))
	case 3, 4:
		if key := w.findJob(v1alpha1.JobQueued); key != "" {
			w.jobs[key] = v1alpha1.JobRunning
			w.sendUpdates(w.updates(jobStarted, key))
		}
	case 5, 6:
		if key := w.findJob(v1alpha1.JobRunning); key != "" {
			delete(w.jobs, key)
			w.sendUpdates(w.updates(jobCompleted, key))
		}
	case 7:
		if len(w.delayed) > 0 {
			at := w.generator.IntN(len(w.delayed))
			n := w.delayed[at]
			w.delayed = slices.Delete(w.delayed, at, at+1)
			w.deliver(n)
		}
	case 8:
		w.writeJobs(w.t.reconcile(quiet, w.now))
	case 9:
		if w.forgets {
			// Pending messages of the old session do not reach the new one: a queue keeps messages
			// in order and sends unacknowledged messages again.
			fresh := newEmptyTally()
			w.t, w.delayed = &fresh, nil
		}

		w.reconnect()
	}
}

// deliverAll delivers all pending messages and advances the clock.
func (w *tallyFixture) deliverAll() {
	for _, n := range w.delayed {
		w.deliver(n)
	}

	w.delayed = nil

	for range 3 {
		w.now = w.now.Add(surplusGracePeriod + time.Minute)
		w.t.observe(w.newStatistics(), w.now)
		w.writeJobs(w.t.reconcile(quiet, w.now))
	}
}

// confirmJobs reads the jobs of the ledger, as the runners area does for jobs without updates.
func (w *tallyFixture) confirmJobs() {
	for _, id := range slices.Sorted(maps.Keys(w.ledger)) {
		if w.ledger[id] != v1alpha1.JobCompleted {
			if job, ok := w.t.findJob(id, w.now); ok {
				w.writeJobs([]workload.Job{job})
			}
		}
	}
}

func checkProperty(t *testing.T, name string, run func(seed uint64, steps []int) string) {
	t.Helper()

	property.Check(t, name, property.Options{}, prop.ForAll(run, gen.UInt64(), gen.SliceOfN(120, gen.IntRange(0, 9))))
}

// However messages are lost, delayed or repeated, finally as many jobs wait in the ledger as the
// scale set counts.
func TestTallyConvergesToStatistics(t *testing.T) {
	t.Parallel()

	checkProperty(t, "waiting jobs are those of the level", func(seed uint64, steps []int) string {
		w := newTallyFixture(seed)
		w.loses, w.delays, w.repeats = true, true, true

		for _, what := range steps {
			w.changeJobs(what)
		}

		w.deliverAll()

		if got, want := w.countWritten(v1alpha1.JobQueued), w.count(v1alpha1.JobQueued); got != want {
			return fmt.Sprintf("%d jobs wait in the ledger, want %d", got, want)
		}

		if got, most := w.countWritten(v1alpha1.JobRunning), w.count(v1alpha1.JobRunning); got > most {
			return fmt.Sprintf("%d jobs run in the ledger, at most %d do", got, most)
		}

		return ""
	})
}

// A listener that restarts repeatedly also reaches the scale set's counts, after the jobs that it
// cannot identify have completed and the ledger's jobs were read.
func TestTallyConvergesWithoutMemory(t *testing.T) {
	t.Parallel()

	checkProperty(t, "waiting jobs are those of the level after restarts", func(seed uint64, steps []int) string {
		w := newTallyFixture(seed)
		w.loses, w.delays, w.repeats, w.forgets = true, true, true, true

		for _, what := range steps {
			w.changeJobs(what)
		}

		w.deliverAll()

		if got, want := w.countWritten(v1alpha1.JobQueued), w.count(v1alpha1.JobQueued); got < want {
			return fmt.Sprintf("%d jobs wait in the ledger, fewer than the %d there are", got, want)
		}

		for key := w.findJob(v1alpha1.JobRunning); key != ""; key = w.findJob(v1alpha1.JobRunning) {
			delete(w.jobs, key)
			w.sendUpdates(w.updates(jobCompleted, key))
		}

		w.deliverAll()
		w.confirmJobs()

		if got, want := w.countWritten(v1alpha1.JobQueued), w.count(v1alpha1.JobQueued); got != want {
			return fmt.Sprintf("%d jobs wait in the ledger, want %d", got, want)
		}

		return ""
	})
}

// If no message is lost, no placeholder is added and no job is closed.
func TestTallyIsExactWithoutFaults(t *testing.T) {
	t.Parallel()

	checkProperty(t, "the ledger is the truth at every step", func(seed uint64, steps []int) string {
		w := newTallyFixture(seed)
		w.repeats = true

		for _, what := range steps {
			w.changeJobs(what)

			for _, state := range []v1alpha1.JobState{v1alpha1.JobQueued, v1alpha1.JobRunning} {
				if got, want := w.countWritten(state), w.count(state); got != want {
					return fmt.Sprintf("%d jobs are %s in the ledger, want %d", got, state, want)
				}
			}

			if len(w.t.placeholders) > 0 {
				return "there is a placeholder"
			}
		}

		return ""
	})
}

func TestTallyReadsUpdates(t *testing.T) {
	t.Parallel()

	later := lenientTime{newEpoch().Add(time.Hour)}

	for name, test := range map[string]struct {
		updates []jobUpdate
		want    map[string]v1alpha1.JobState
	}{
		"all assignments of one request": {
			[]jobUpdate{{Kind: jobAvailable, RequestID: 9, JobID: "a"}, {Kind: jobAssigned, RequestID: 9}, {Kind: jobStarted, RequestID: 9}},
			map[string]v1alpha1.JobState{"9": v1alpha1.JobRunning},
		},
		"late and repeated updates": {
			[]jobUpdate{{Kind: jobStarted, RequestID: 9}, {Kind: jobAssigned, RequestID: 9}, {Kind: jobCompleted, RequestID: 9}, {Kind: jobStarted, RequestID: 9}},
			map[string]v1alpha1.JobState{"9": v1alpha1.JobCompleted},
		},
		"a withdrawn assignment, and the next one of the same job": {
			[]jobUpdate{
				{Kind: jobAssigned, JobID: "A", AssignedAt: lenientTime{newEpoch()}},
				{Kind: jobCompleted, JobID: "A", AssignedAt: lenientTime{newEpoch()}, Result: "canceled"},
				{Kind: jobAssigned, JobID: "A", AssignedAt: later},
			},
			map[string]v1alpha1.JobState{"a-1772366400": v1alpha1.JobCompleted, "a-1772370000": v1alpha1.JobQueued},
		},
		"a withdrawn assignment without times": {
			[]jobUpdate{{Kind: jobAssigned, JobID: "A"}, {Kind: jobCompleted, JobID: "A"}, {Kind: jobAssigned, JobID: "A"}},
			map[string]v1alpha1.JobState{"a": v1alpha1.JobCompleted, "a-1772366400": v1alpha1.JobQueued},
		},
		"updates of a job without any id, and of an unknown kind": {
			[]jobUpdate{{Kind: jobAssigned}, {Kind: "JobPraised", RequestID: 3}}, map[string]v1alpha1.JobState{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			tally, got := newEmptyTally(), map[string]v1alpha1.JobState{}
			tally.begin("s", statistics{}, newEpoch())

			for _, n := range test.updates {
				for _, job := range tally.applyUpdates([]jobUpdate{n}, newEpoch()) {
					got[job.ID[len(tally.prefix):]] = job.State
				}
			}

			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("jobs (-want +got):\n%s", diff)
			}
		})
	}
}

// Statistics can be zero although updates report assigned jobs. These jobs are not closed.
func TestTallyPrefersUpdatesToStatistics(t *testing.T) {
	t.Parallel()

	tally := newEmptyTally()
	tally.begin("s", statistics{}, newEpoch())
	tally.applyUpdates([]jobUpdate{{Kind: jobAssigned, RequestID: 1}}, newEpoch())

	for _, delay := range []time.Duration{0, time.Minute, surplusGracePeriod - time.Second} {
		tally.observe(statistics{}, newEpoch().Add(delay))

		if out := tally.reconcile(quiet, newEpoch().Add(delay)); len(out) > 0 {
			t.Fatalf("after %s: %v", delay, out)
		}
	}

	tally.observe(statistics{}, newEpoch().Add(surplusGracePeriod))

	if out := tally.reconcile(quiet, newEpoch().Add(surplusGracePeriod)); len(out) != 1 || out[0].Conclusion != conclusionLost {
		t.Errorf("after %s: %v", surplusGracePeriod, out)
	}
}

// A big batch arrives in parts. Pending jobs get no placeholders. Jobs that never arrive do.
func TestTallyWaitsForUpdates(t *testing.T) {
	t.Parallel()

	tally, now := newEmptyTally(), newEpoch()
	tally.begin("s", statistics{}, now)

	part := func(from, to int) (out []jobUpdate) {
		for request := from; request < to; request++ {
			out = append(out, jobUpdate{Kind: jobAssigned, RequestID: int64(request)})
		}

		return out
	}
	expect := func(what string, dry bool, updates []jobUpdate, named, made int) {
		t.Helper()
		tally.applyUpdates(updates, now)
		tally.observe(statistics{Assigned: 100}, now)
		tally.reconcile(dry, now)

		if got := len(tally.listNamed(v1alpha1.JobQueued)); got != named || len(tally.placeholders) != made {
			t.Fatalf("%s: %d named jobs and %d placeholders, want %d and %d", what, got, len(tally.placeholders), named, made)
		}
	}

	expect("the first part", false, part(1, 51), 50, 0)
	expect("a silence, soon after the start", true, nil, 50, 0)

	now = now.Add(unknownJobsGracePeriod)

	expect("a silence", true, nil, 50, 50)
	expect("the second part", false, part(51, 81), 80, 20)
	expect("the rest", false, part(81, 101), 100, 0)
}

// Jobs that the current session does not mention are closed as soon as its messages have arrived.
func TestTallyClosesUnknownJobs(t *testing.T) {
	t.Parallel()

	tally, now := newEmptyTally(), newEpoch()
	tally.begin("first", statistics{}, now)
	tally.applyUpdates([]jobUpdate{
		{Kind: jobStarted, RequestID: 1}, {Kind: jobStarted, RequestID: 2},
		{Kind: jobAssigned, RequestID: 3}, {Kind: jobAssigned, RequestID: 4}, {Kind: jobAssigned, RequestID: 5},
	}, now)
	tally.begin("second", statistics{Assigned: 3, Running: 2}, now)

	if out := tally.reconcile(notQuiet, now); len(out) > 0 {
		t.Fatalf("before all messages have arrived: %v", out)
	}

	// One running job is closed. Of the waiting jobs, one is closed and one runs.
	tally.applyUpdates([]jobUpdate{{Kind: jobCompleted, RequestID: 2}}, now)

	got := map[string]v1alpha1.JobState{}
	for _, job := range tally.reconcile(quiet, now) {
		got[job.ID[len(tally.prefix):]] = job.State
	}

	want := map[string]v1alpha1.JobState{"3": v1alpha1.JobRunning, "4": v1alpha1.JobCompleted}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("changed (-want +got):\n%s", diff)
	}
}

// Messages are external input: no message makes the tally fail or its ids ambiguous.
func FuzzScaleSetMessage(f *testing.F) {
	f.Add(`[{"messageType":"JobAssigned","jobId":"bd59f43d-2e1a-567a-b5a4-c147b94d0766","runnerRequestId":0,`+
		`"scaleSetAssignTime":"2026-07-26T23:29:36Z","ownerName":"o","repositoryName":"r","workflowRunId":5}]`, 1, 0)
	f.Add(`[{"messageType":"JobCompleted","runnerRequestId":7,"finishTime":"0001-01-01T00:00:00Z","queueTime":""}]`, 0, -3)
	f.Fuzz(func(t *testing.T, body string, assigned, running int) {
		tally := newEmptyTally()
		tally.begin("s", statistics{}, newEpoch())

		updates := queueMessage{Type: jobsMessageType, Body: body}.updates()
		if _, err := json.Marshal(updates); err != nil {
			t.Skip("times without a JSON representation")
		}

		seen := map[string]bool{}
		for _, job := range tally.applyUpdates(updates, newEpoch()) {
			if job.ID == "" || seen[job.ID] || job.State == "" {
				t.Errorf("job %+v has no id or state, or comes twice", job)
			}

			seen[job.ID] = true
		}

		tally.observe(statistics{Assigned: min(assigned, 1000), Running: min(running, 1000)}, newEpoch())
		tally.reconcile(quiet, newEpoch().Add(unknownJobsGracePeriod))
	})
}
