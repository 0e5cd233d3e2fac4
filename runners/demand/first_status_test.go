// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand_test

import (
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/demand"
	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/workload"
)

// receiveJob records a job of the repository as its webhook does.
func receiveJob(t *testing.T, namespace, repository string, now time.Time) client.ObjectKey {
	t.Helper()

	platforms := newPlatforms()
	job := newJob(v1alpha1.JobQueued, func(j *workload.Job) { j.Repository = repository })

	ledger := &demand.Ledger{Client: env.Client, Live: env.Client, Platforms: platforms}
	if _, err := ledger.Record(t.Context(), namespace, job, now); err != nil {
		t.Fatal(err)
	}

	return client.ObjectKey{Namespace: namespace, Name: platforms.JobName(job)}
}

// setPoolReason sets the reason of a ready pool's condition Scaling.
func setPoolReason(t *testing.T, pool *v1alpha1.RunnerPool, reason string) {
	t.Helper()

	pool.Status.Conditions = []metav1.Condition{newReadyCondition(metav1.ConditionTrue, "Ready", ""), {
		Type: "Scaling", Status: metav1.ConditionTrue, Reason: reason, LastTransitionTime: metav1.Now(),
	}}
	must.Do(t, env.Client.Status().Update(t.Context(), pool))
}

// A job is created with the name of its pool. So its status is written together with the start of the job, or after half a
// minute. If its pool is full, it is written after five seconds.
func TestFirstStatusIsWrittenLater(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		after          time.Duration
		starts, isFull bool
		want           string
	}{
		"it waits":                  {29 * time.Second, false, false, ""},
		"it waits for longer":       {31 * time.Second, false, false, demand.ReasonWaitingForMachine},
		"it has started just now":   {4 * time.Second, true, false, ""},
		"it has started":            {6 * time.Second, true, false, demand.ReasonRunning},
		"its pool is full just now": {4 * time.Second, false, true, ""},
		"its pool is full":          {6 * time.Second, false, true, demand.ReasonAtMaximum},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			namespace, repository := env.Namespace(t), newUniqueName(t)+"/app"

			pool := createPool(t, namespace, "linux", repository, "s", "linux")
			if tc.isFull {
				setPoolReason(t, pool, demand.ReasonAtMaximum)
			}

			clk := clocktesting.NewFakePassiveClock(time.Now())
			r := newReconciler(t, clk, nil)
			key := receiveJob(t, namespace, repository, clk.Now())

			if result := reconcileJob(t, r, key); result.RequeueAfter > 30*time.Second {
				t.Errorf("requeued after %s, want at most 30s", result.RequeueAfter)
			}

			job := getJob(t, key)
			if job.Status.Pool != "" || job.PoolName() != "linux" {
				t.Errorf("pool %q in the status, and %q; want only the latter", job.Status.Pool, job.PoolName())
			}

			if tc.starts {
				job.Spec.State, job.Spec.RunnerName = v1alpha1.JobRunning, "runner-a"
				must.Do(t, env.Client.Update(t.Context(), job))
				reconcileJob(t, r, key)
			}

			clk.SetTime(clk.Now().Add(tc.after))
			reconcileJob(t, r, key)

			job = getJob(t, key)
			if tc.want == "" {
				if len(job.Status.Conditions) > 0 {
					t.Errorf("the status was written after %s: %v", tc.after, job.Status.Conditions)
				}

				return
			}

			served := meta.FindStatusCondition(job.Status.Conditions, demand.ConditionServed)
			if served == nil || served.Reason != tc.want || job.Status.Pool != "linux" {
				t.Errorf("pool %q, condition %v; want linux, %s", job.Status.Pool, served, tc.want)
			}
		})
	}
}

// A job that no longer waits because its pool is full starts soon. Its status is written with the start, or after half a minute. If
// the pool is full again before that, nothing is written.
func TestEndOfWaitIsWrittenLater(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		after time.Duration
		again bool
		want  string
	}{
		"the pool has room":              {29 * time.Second, false, demand.ReasonAtMaximum},
		"the pool has room for longer":   {31 * time.Second, false, demand.ReasonWaitingForMachine},
		"the pool is full again by then": {31 * time.Second, true, demand.ReasonAtMaximum},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			namespace, repository := env.Namespace(t), newUniqueName(t)+"/app"
			pool := createPool(t, namespace, "linux", repository, "s", "linux")
			clk := clocktesting.NewFakePassiveClock(time.Now())
			r := newReconciler(t, clk, nil)

			setPoolReason(t, pool, demand.ReasonAtMaximum)
			key := receiveJob(t, namespace, repository, clk.Now())
			reconcileJob(t, r, key)
			clk.SetTime(clk.Now().Add(6 * time.Second))
			reconcileJob(t, r, key)

			version := getJob(t, key).ResourceVersion

			setPoolReason(t, pool, demand.ReasonScalingUp)
			reconcileJob(t, r, key)

			if tc.again {
				clk.SetTime(clk.Now().Add(10 * time.Second))
				setPoolReason(t, pool, demand.ReasonAtMaximum)
				reconcileJob(t, r, key)
			}

			clk.SetTime(clk.Now().Add(tc.after))
			reconcileJob(t, r, key)

			job := getJob(t, key)
			served := meta.FindStatusCondition(job.Status.Conditions, demand.ConditionServed)

			if served == nil || served.Reason != tc.want || (job.ResourceVersion == version) != (tc.want == demand.ReasonAtMaximum) {
				t.Errorf("condition %v, written: %t; want %s", served, job.ResourceVersion != version, tc.want)
			}
		})
	}
}

// A job that starts or ends before its first status was written, while the operator restarts, keeps its pool.
func TestJobWithoutStatusKeepsItsPool(t *testing.T) {
	t.Parallel()

	for _, state := range []v1alpha1.JobState{v1alpha1.JobRunning, v1alpha1.JobCompleted} {
		namespace, repository := env.Namespace(t), newUniqueName(t)+"/app"
		createPool(t, namespace, "linux", repository, "s", "linux")

		clk := clocktesting.NewFakePassiveClock(time.Now())
		key := receiveJob(t, namespace, repository, clk.Now())
		reconcileJob(t, newReconciler(t, clk, nil), key)

		job := getJob(t, key)
		job.Spec.State, job.Spec.RunnerName = state, "runner-a"
		must.Do(t, env.Client.Update(t.Context(), job))
		clk.SetTime(clk.Now().Add(20 * time.Second))

		next := newReconciler(t, clk, nil)
		reconcileJob(t, next, key)
		clk.SetTime(clk.Now().Add(20 * time.Second))
		reconcileJob(t, next, key)

		job = getJob(t, key)
		decided := slices.IndexFunc(job.Status.Timeline, func(e v1alpha1.JobEvent) bool { return e.Moment == v1alpha1.MomentDecided })

		if job.Status.Pool != "linux" || decided < 0 || !job.Status.Timeline[decided].Time.Equal(job.Spec.ReceivedAt) {
			t.Errorf("%s: pool %q, timeline %v; want linux, decided at %s", state, job.Status.Pool, job.Status.Timeline, job.Spec.ReceivedAt)
		}
	}
}

// The first status is written at once if it says more than the name of the pool that the job has.
func TestFirstStatusIsWrittenAtOnce(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		before, after func(t *testing.T, namespace, repository string)
		want          string
	}{
		"no pool at first": {
			after: func(t *testing.T, namespace, repository string) {
				t.Helper()
				createPool(t, namespace, "linux", repository, "s", "linux")
			},
			want: "linux " + demand.ReasonWaitingForMachine,
		},
		"no pool": {want: " " + demand.ReasonNoPool},
		"another pool comes first now": {
			before: func(t *testing.T, namespace, repository string) {
				t.Helper()
				createPool(t, namespace, "linux", repository, "s", "linux")
			},
			after: func(t *testing.T, namespace, repository string) {
				t.Helper()
				createPool(t, namespace, "a-linux", repository, "s", "linux")
			},
			want: "a-linux " + demand.ReasonWaitingForMachine,
		},
		"the pool is paused": {
			before: func(t *testing.T, namespace, repository string) {
				t.Helper()

				pool := createPool(t, namespace, "linux", repository, "s", "linux")
				pool.Spec.Paused = true
				must.Do(t, env.Client.Update(t.Context(), pool))
			},
			want: "linux " + demand.CausePaused,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			namespace, repository := env.Namespace(t), newUniqueName(t)+"/app"
			clk := clocktesting.NewFakePassiveClock(time.Now())
			r := newReconciler(t, clk, nil)

			if tc.before != nil {
				tc.before(t, namespace, repository)
			}

			key := receiveJob(t, namespace, repository, clk.Now())

			if tc.after != nil {
				tc.after(t, namespace, repository)
			}

			reconcileJob(t, r, key)

			job := getJob(t, key)

			reason := ""
			if ready := meta.FindStatusCondition(job.Status.Conditions, v1alpha1.ConditionReady); ready != nil {
				reason = ready.Reason
			}

			if got := job.PoolName() + " " + reason; got != tc.want {
				t.Errorf("pool and reason are %q, want %q", got, tc.want)
			}
		})
	}
}

// The pool in a job's label counts only until the job has a status.
func TestPoolName(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		label, status string
		isWritten     bool
		want          string
	}{
		"nothing":                {"", "", false, ""},
		"just received":          {"linux", "", false, "linux"},
		"no pool serves it":      {"linux", "", true, ""},
		"another pool serves it": {"linux", "arm", true, "arm"},
		"made before the label":  {"", "arm", true, "arm"},
	} {
		job := &v1alpha1.RunnerJob{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{v1alpha1.LabelRunnerPool: tc.label}}}
		job.Status.Pool = tc.status

		if tc.isWritten {
			job.Status.Conditions = []metav1.Condition{newReadyCondition(metav1.ConditionFalse, "Test", "")}
		}

		if got := job.PoolName(); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
