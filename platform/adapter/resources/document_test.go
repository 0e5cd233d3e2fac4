// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package resources_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/platform/adapter/resources"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

const documents = "../task/testdata/seed/"

// documentFixture is a fixture whose task is an example of document 001.
type documentFixture struct {
	*fixture

	now  *testclock.FakePassiveClock
	vars map[string]any
}

// newDocumentFixture loads an example. Objects that it patches and does not create are created by a first task.
func newDocumentFixture(t *testing.T, file string) *documentFixture {
	t.Helper()

	now := testclock.NewFakePassiveClock(time.Now())
	f := &documentFixture{fixture: newFixture(t, newSimpleTask()), now: now}
	f.id = f.ns

	data, err := os.ReadFile(documents + file)
	must.Do(t, err)

	f.load(string(data))
	f.vars = map[string]any{
		"event": map[string]any{"id": f.id}, "clusterId": f.ns, "resourceId": f.ns, "generation": int64(1), "namespace": f.ns,
		"is_deleting": false, "clusterStatus": "new", "status": "new", "tier": "small",
		"clusterResource": map[string]any{"status": map[string]any{"conditions": []any{}}},
	}

	return f
}

func (f *documentFixture) load(text string) {
	f.Helper()

	var err error

	f.task, err = task.Load(fstest.MapFS{"task.yaml": {Data: []byte(text)}}, "task.yaml", nil, task.WithClock(f.now))
	must.Do(f, err)
}

// create creates an object as an earlier version of the example, which had a manifest.
func (f *documentFixture) create(name, manifest, discovery string) {
	f.Helper()

	example := f.task

	f.load("params: [{name: namespace, source: event.id}, {name: clusterId, source: event.id}]\nresources:\n- name: " + name +
		"\n  manifest: " + manifest + "\n  discovery: " + discovery + "\n")
	f.send("create/Absent")

	f.task = example
}

// send handles an event and compares the outcomes.
func (f *documentFixture) send(outcomes ...string) resources.Result {
	f.Helper()

	in := f.input()
	in.Deleting = f.vars["is_deleting"] == true

	result, err := resources.Run(f.Context(), in)
	must.Do(f, err)

	if got := formatOutcomes(result); strings.Join(got, " ") != strings.Join(outcomes, " ") {
		f.Fatalf("outcomes %v, want %v; errors: %v", got, outcomes, result.Err())
	}

	return result
}

// sendUntil handles events until the outcomes are as wanted, because cached reads may be older than the last change.
func (f *documentFixture) sendUntil(outcome string) {
	f.Helper()

	timing.WaitUntil(f, outcome, func() bool {
		in := f.input()
		in.Deleting = f.vars["is_deleting"] == true

		result, err := resources.Run(f.Context(), in)
		must.Do(f, err)

		return formatOutcomes(result)[0] == outcome
	})
}

// sendUntilEnded handles events until the entry sees that its Job has ended. Each event has the outcome.
func (f *documentFixture) sendUntilEnded(entry, outcome string) {
	f.Helper()

	timing.WaitUntil(f, "the Job has ended", func() bool {
		job, _ := f.send(outcome).Objects[entry].(map[string]any)
		_, hasEnded, err := unstructured.NestedSlice(job, "status", "conditions")
		must.Do(f, err)

		return hasEnded
	})
}

func (f *documentFixture) pass(d time.Duration) { f.now.SetTime(f.now.Now().Add(d)) }

// endJobs adds a condition to all Jobs.
func (f *documentFixture) endJobs(conditionType batchv1.JobConditionType) {
	f.Helper()

	for _, job := range f.listJobs() {
		now := metav1.NewTime(job.CreationTimestamp.Add(time.Second))
		job.Status = batchv1.JobStatus{StartTime: &job.CreationTimestamp, Conditions: []batchv1.JobCondition{
			{Type: "FailureTarget", Status: corev1.ConditionTrue, LastTransitionTime: now},
			{Type: conditionType, Status: corev1.ConditionTrue, LastTransitionTime: now},
		}}

		if conditionType == batchv1.JobComplete {
			job.Status.Conditions[0].Type, job.Status.CompletionTime = batchv1.JobSuccessCriteriaMet, &now
		}

		must.Do(f, env.Client.Status().Update(f.Context(), &job))
	}
}

func (f *documentFixture) listJobs() []batchv1.Job {
	f.Helper()

	var list batchv1.JobList
	must.Do(f, env.Client.List(f.Context(), &list, client.InNamespace(f.ns)))

	return list.Items
}

// TestDocumentDebounce runs example 1.1: a new Job at most every ten minutes, and only if the last one is complete.
func TestDocumentDebounce(t *testing.T) {
	t.Parallel()

	f := newDocumentFixture(t, "1.1-debounce.yaml")

	f.send("create/Absent")
	f.send("none/WhenFalse") // delivered twice
	f.pass(11 * time.Minute)
	f.send("none/GenerationUnchanged") // a Job without conditions is not complete
	f.pass(-11 * time.Minute)
	f.endJobs(batchv1.JobComplete)
	f.sendUntilEnded("provisioningJob", "none/WhenFalse") // it may not be replaced yet
	f.pass(11 * time.Minute)
	timing.WaitUntil(t, "the Job is replaced", func() bool {
		result, err := resources.Run(f.Context(), f.input())
		must.Do(t, err)

		return result.Err() == nil && len(f.listJobs()) == 1 && f.listJobs()[0].Status.CompletionTime == nil
	})

	f.vars["is_deleting"] = true
	f.sendUntil("none/GenerationUnchanged") // the example has no gate for deletions
}

func (f *documentFixture) input() resources.Input {
	in := f.newInput(event{generation: 1})
	in.Vars, in.Clock = f.vars, f.now

	return in
}

// TestDocumentRetention runs the example of section 7: Jobs with the time in their name.
func TestDocumentRetention(t *testing.T) {
	t.Parallel()

	for _, end := range []batchv1.JobConditionType{batchv1.JobComplete, batchv1.JobFailed} {
		t.Run(string(end), func(t *testing.T) {
			t.Parallel()

			f := newDocumentFixture(t, "7-retention.yaml")

			f.send("create/Absent")
			f.send("none/WhenFalse")
			f.pass(11 * time.Minute)
			f.send("none/GenerationUnchanged")
			f.pass(-11 * time.Minute)
			f.endJobs(end)
			f.sendUntilEnded("provisioningJob", "none/WhenFalse")
			f.pass(11 * time.Minute)
			f.sendUntil("recreate/RecreateGate")

			if jobs := f.listJobs(); len(jobs) != 2 || jobs[1].Name != strings.ToLower(jobs[1].Name) {
				t.Errorf("%d jobs", len(jobs))
			}
		})
	}
}

// TestDocumentDetach runs example 1.4: a Job is handed over when its resource is deleted.
func TestDocumentDetach(t *testing.T) {
	t.Parallel()

	f := newDocumentFixture(t, "1.4-detach.yaml")

	f.send("create/Absent")

	f.vars["is_deleting"] = true
	f.send("detach/DetachGate")
	f.send("none/Detached") // delivered twice

	if jobs := f.listJobs(); len(jobs) != 1 || jobs[0].Labels[adapter.LabelAdapter] != "" || jobs[0].DeletionTimestamp != nil {
		t.Errorf("jobs: %+v", jobs)
	}
}

// TestDocumentConditions runs the second example of section 5: an annotation at most once a day.
func TestDocumentConditions(t *testing.T) {
	t.Parallel()

	f := newDocumentFixture(t, "5-conditions.yaml")

	f.send("none/NothingToApply") // the Secret is absent
	f.create("certSecret", `{apiVersion: v1, kind: Secret, metadata: {name: cert, namespace: "{{ .namespace }}"}}`,
		`{namespace: "{{ .namespace }}", by_name: cert}`)
	f.send("patch/PatchGate") // no adapter has reported the condition

	conditions := func(all ...any) {
		f.vars["clusterResource"] = map[string]any{"status": map[string]any{"conditions": all}}
	}

	// The fleet API's conditions have another name for the field, and a string for the time.
	conditions(map[string]any{"type": "CertRotated", "last_transition_time": f.now.Now().UTC().Format(time.RFC3339)})

	result := f.send("!none/GateFailed")
	if err := result.Err(); !strings.Contains(err.Error(), "no such key: lastTransitionTime; conditions of the fleet API have last_transition_time") {
		t.Error(err)
	}

	f.vars["clusterResource"] = map[string]any{"status": map[string]any{}}

	result = f.send("!none/GateFailed")
	if err := result.Err(); !strings.Contains(err.Error(), `dig(clusterResource, "status.conditions") is absent: pass the value to use instead as dig's third argument`) {
		t.Error(err)
	}

	data, err := os.ReadFile(documents + "5-conditions.yaml")
	must.Do(t, err)
	f.load(strings.NewReplacer(`c.lastTransitionTime < timestamp(now()).toUnixTime() - 86400`,
		`timestamp(c.last_transition_time) < timestamp(now()) - duration("24h")`).Replace(string(data)))

	conditions(map[string]any{"type": "CertRotated", "last_transition_time": f.now.Now().UTC().Format(time.RFC3339)})
	f.send("none/NothingToApply")
	f.pass(25 * time.Hour)
	f.send("patch/PatchGate")
}

// TestDocumentDrift runs the first example of section 5: an annotation with the time of the last event.
func TestDocumentDrift(t *testing.T) {
	t.Parallel()

	for file, expression := range map[string]string{
		"5-drift.yaml":                   `dig(resources.clusterNamespace.metadata.annotations, "example.io/rotated-at")`,
		"alternatives-last-updated.yaml": `dig(resources.certSecret.metadata.annotations, "hyperfleet.io/last-updated")`,
	} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()

			f := newDocumentFixture(t, file)

			if file == "5-drift.yaml" {
				f.vars["clusterId"] = f.ns + "-own"
				f.send("none/NothingToApply")
				f.create("clusterNamespace", `{apiVersion: v1, kind: Namespace, metadata: {name: "{{ .clusterId }}"}}`, `{by_name: "{{ .clusterId }}"}`)
			} else {
				f.send("create/Absent")
			}

			// The object has no such annotation. Comparing nothing with a time can't be right for every gate, so the error
			// says what to write.
			result := f.send("!none/GateFailed")
			if err := result.Err(); !strings.Contains(err.Error(), "no such overload: < of null and string; "+expression+" is absent: pass the value") {
				t.Error(err)
			}

			data, err := os.ReadFile(documents + file)
			must.Do(t, err)

			f.load(strings.Replace(string(data), `-at") < now()`, `-at", "") < now()`, 1))

			if file == "5-drift.yaml" {
				f.send("patch/PatchGate")
				f.send("none/NothingToApply") // in the same second
				f.pass(time.Minute)
				f.send("patch/PatchGate")
			}
		})
	}
}

// TestDocumentExamplesAreDeliveredTwice runs all examples for a resource without objects, twice, and then for its
// deletion. No second event writes anything, and none fails.
func TestDocumentExamplesAreDeliveredTwice(t *testing.T) {
	t.Parallel()

	files, err := filepath.Glob(documents + "*.yaml")
	must.Do(t, err)

	for _, file := range files {
		name := filepath.Base(file)
		if name == "alternatives-last-updated.yaml" {
			continue // see TestDocumentDrift
		}

		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f := newDocumentFixture(t, name)
			f.vars["clusterId"] = f.ns + "-own"

			for pass := range 3 {
				f.vars["is_deleting"] = pass == 2
				in := f.input()
				in.Deleting = pass == 2

				result, err := resources.Run(t.Context(), in)
				must.Do(t, err)

				for _, outcome := range result.Outcomes {
					if outcome.Err != nil || pass == 1 && outcome.Operation != resources.None {
						t.Errorf("pass %d: %s of %s: %s, %v", pass, outcome.Operation, outcome.Resource, outcome.Reason, outcome.Err)
					}
				}
			}
		})
	}
}
