// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/report"
	"github.com/hyperfleet/hyperfleet/workload"
)

// runParallel calls a function for each number below count, many at a time.
func runParallel(t *testing.T, count int, do func(i int) error) {
	t.Helper()

	var all errgroup.Group

	all.SetLimit(16)

	for i := range count {
		all.Go(func() error { return do(i) })
	}

	if err := all.Wait(); err != nil {
		t.Fatal(err)
	}
}

// Machines of short jobs are deleted before their platform reports which jobs they ran. No log is lost.
func TestBurstLosesNoLog(t *testing.T) {
	t.Parallel()

	const count = 40 // more than the number of logs without a job that a pool keeps

	namespace, repository := env.Namespace(t), newUniqueName(t)+"/app"
	createPool(t, namespace, "linux", repository, "s", "linux")

	_, stop := startJobController(t, namespace)
	defer stop()

	first := createJob(t, namespace, newJob(v1alpha1.JobQueued, func(j *workload.Job) { j.Repository = repository }))
	waitUntil(t, func() bool { return len(getJob(t, first).Status.Conditions) > 0 }) // the controller runs

	keep, ctx := &report.Logs{Client: newIndexedClient(t)}, t.Context()

	runParallel(t, count, func(i int) error {
		claim := newMachineClaim(namespace, fmt.Sprintf("linux-%03d", i))
		if err := env.Client.Create(ctx, claim); err != nil {
			return err
		}

		claim.Status = v1alpha1.MachineClaimStatus{
			BootstrapInfo: &v1alpha1.BootstrapInfo{RunnerName: workload.RunnerName(claim.Name, claim.UID)},
			Times:         &v1alpha1.MachineTimes{Started: newMicroTimeAt(3), Ready: newMicroTimeAt(4), Stopped: newMicroTimeAt(6)}, EndReason: "JobDone",
		}
		if err := env.Client.Status().Update(ctx, claim); err != nil {
			return err
		}

		if err := keep.Keep(ctx, claim, "output of "+claim.Name); err != nil {
			return err
		}

		spec := newJob(v1alpha1.JobCompleted, func(j *workload.Job) {
			j.ID, j.Repository, j.RunnerName = strconv.Itoa(1000+i), repository, claim.Status.BootstrapInfo.RunnerName
			j.StartedAt, j.CompletedAt = newTimeAt(5), &metav1.Time{Time: time.Now()}
		})

		return errors.Join(env.Client.Delete(ctx, claim), env.Client.Create(ctx, &v1alpha1.RunnerJob{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: newPlatforms().JobName(spec)}, Spec: spec,
		}))
	})

	var all v1alpha1.RunnerJobList
	if err := env.Client.List(ctx, &all, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}

	stored := map[string]string{}

	for i := range all.Items {
		key := client.ObjectKeyFromObject(&all.Items[i])
		if key == first {
			continue
		}

		var timestamp v1alpha1.RunnerJobStatus

		waitUntil(t, func() bool {
			timestamp = getJob(t, key).Status

			return slices.ContainsFunc(timestamp.Timeline, func(e v1alpha1.JobEvent) bool { return e.Moment == v1alpha1.MomentDestroyed })
		})

		stored[timestamp.Logs] = "output of " + timestamp.Claim
	}

	var logs v1alpha1.RunnerLogList
	if err := env.Client.List(ctx, &logs, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}

	kept := map[string]string{}
	for i := range logs.Items {
		kept[logs.Items[i].Name] = logs.Items[i].Spec.Text
	}

	if !maps.Equal(stored, kept) || len(kept) != count {
		t.Errorf("%d jobs with %d logs, and %d RunnerLogs that do not all belong to these jobs", count, len(stored), len(kept))
	}
}

// A process that did not observe a machine finds the log of its job by the runner name that the platform
// reports. The log is deleted together with the job.
func TestLogIsFoundByItsRunner(t *testing.T) {
	t.Parallel()

	namespace, now := env.Namespace(t), time.Now()
	claim := newMachineClaim(namespace, "linux-a")
	claim.UID = "0123abcd-0000-4000-8000-000000000000"

	if err := (&report.Logs{Client: newIndexedClient(t)}).Keep(t.Context(), claim, "what it did"); err != nil {
		t.Fatal(err)
	}

	clk := clocktesting.NewFakePassiveClock(now)
	failing := &failingLogs{Logs: report.Logs{Client: newIndexedClient(t)}, failures: 1}
	r := newReconciler(t, clk, nil)
	r.Logs = failing

	key := createJob(t, namespace, newJob(v1alpha1.JobCompleted, func(j *workload.Job) {
		j.RunnerName, j.CompletedAt = "linux-a-0123abcd", &metav1.Time{Time: now}
	}))

	if again := reconcileJob(t, r, key).RequeueAfter; again > 10*time.Second || getJob(t, key).Status.Logs != "" {
		t.Errorf("the API server failed, and the job is requeued after %s", again)
	}

	reconcileJob(t, r, key)

	if got := getJob(t, key).Status.Logs; got != "linux-a-0123abcd-log" {
		t.Fatalf("log %q", got)
	}

	clk.SetTime(time.Now().Add(24*time.Hour + time.Second)) // the job was created a moment ago
	reconcileJob(t, r, key)

	err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "linux-a-0123abcd-log"}, &v1alpha1.RunnerLog{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("the log outlives its job: %v", err)
	}
}

// failingLogs fails for the first calls of Find.
type failingLogs struct {
	report.Logs

	failures int
}

func (f *failingLogs) Find(ctx context.Context, namespace, runner string) (string, error) {
	f.failures--
	if f.failures >= 0 {
		return "", errors.New("no answer")
	}

	return f.Logs.Find(ctx, namespace, runner)
}
