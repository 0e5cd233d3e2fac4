// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/demand"
	"github.com/hyperfleet/hyperfleet/workload"
)

// labelProvider is a platform that knows the labels of jobs, or that does not respond.
type labelProvider struct {
	workload.Provider

	labels []string
	err    error
}

func (p labelProvider) GetJob(_ context.Context, repository, id string) (workload.Job, error) {
	return newJob(v1alpha1.JobQueued, func(j *workload.Job) { j.ID, j.Repository, j.Labels = id, repository, p.labels }), p.err
}

// receiveUnlabeledJob records a job of the repository as a webhook without its labels does.
func receiveUnlabeledJob(t *testing.T, namespace, repository, id string, now time.Time) client.ObjectKey {
	t.Helper()

	platforms := newPlatforms()
	job := newJob(v1alpha1.JobQueued, func(j *workload.Job) {
		j.ID, j.Repository, j.Labels, j.LabelsUnknown = id, repository, nil, true
	})

	ledger := &demand.Ledger{Client: env.Client, Live: env.Client, Platforms: platforms}
	if _, err := ledger.Record(t.Context(), namespace, job, now); err != nil {
		t.Fatal(err)
	}

	return client.ObjectKey{Namespace: namespace, Name: platforms.JobName(job)}
}

// A job whose webhook lacks its labels gets them, and the name of its pool, in one write. Its status is then written as late as
// that of other jobs, and says nothing about webhooks. If the platform does not tell the labels, the status says so at once.
func TestLabelsAreLookedUp(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		provider labelProvider
		pool     string
		// reason is that of the condition Ready, if the status was written.
		reason string
	}{
		"a pool has the labels":         {labelProvider{labels: []string{"linux"}}, "linux", ""},
		"no pool has the labels":        {labelProvider{labels: []string{"windows"}}, "", demand.ReasonNoLabels},
		"the platform does not respond": {labelProvider{err: &workload.Error{Kind: workload.Rejected, Reason: "Refused"}}, "", demand.ReasonLabelsUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			namespace, repository := env.Namespace(t), newUniqueName(t)+"/app"
			createPool(t, namespace, "linux", repository, "s", "linux")
			createTemplate(t, namespace)

			clk := clocktesting.NewFakePassiveClock(time.Now())
			key := receiveUnlabeledJob(t, namespace, repository, "7", clk.Now())
			reconcileJob(t, newReconciler(t, clk, singleProvider{tc.provider}), key)

			job, reason := getJob(t, key), ""
			if ready := meta.FindStatusCondition(job.Status.Conditions, v1alpha1.ConditionReady); ready != nil {
				reason = ready.Reason
			}

			confirmed := meta.FindStatusCondition(job.Status.Conditions, demand.ConditionConfirmed)
			if job.PoolName() != tc.pool || reason != tc.reason || (confirmed != nil) != (tc.provider.err != nil) {
				t.Errorf("pool %q, reason %q, %s %v; want %q, %q", job.PoolName(), reason, demand.ConditionConfirmed, confirmed, tc.pool, tc.reason)
			}
		})
	}
}

// Many jobs can be received without their labels at the same time. A job whose labels the operator has not asked for yet has no
// status, unless that takes long.
func TestManyLabelsAreLookedUp(t *testing.T) {
	t.Parallel()

	const burst = 50

	namespace, repository := env.Namespace(t), newUniqueName(t)+"/app"
	createPool(t, namespace, "linux", repository, "s", "linux")
	createTemplate(t, namespace)

	clk := clocktesting.NewFakePassiveClock(time.Now())
	r := newReconciler(t, clk, singleProvider{labelProvider{labels: []string{"linux"}}})

	for number := range burst + 1 {
		key := receiveUnlabeledJob(t, namespace, repository, strconv.Itoa(number), clk.Now())
		result := reconcileJob(t, r, key)

		job := getJob(t, key)
		if isAsked := !job.Spec.LabelsUnknown; isAsked != (number < burst) || len(job.Status.Conditions) > 0 {
			t.Errorf("job %d has labels: %t, and the conditions %v", number, isAsked, job.Status.Conditions)
		}

		if number == burst && result.RequeueAfter > time.Second {
			t.Errorf("the labels of the last job are requested after %s", result.RequeueAfter)
		}
	}
}
