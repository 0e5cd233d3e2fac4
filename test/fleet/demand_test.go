// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	simgithub "github.com/hyperfleet/hyperfleet/sim/github"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// newPolling returns demand sources that poll the CI platform at this interval.
func newPolling(every time.Duration) *v1alpha1.DemandSources {
	return &v1alpha1.DemandSources{Polling: &v1alpha1.Polling{Interval: &metav1.Duration{Duration: every}}}
}

// TestJobsAreFoundByPolling checks that jobs without a webhook delivery are found by polling, even if they were
// queued while no operator was running.
func TestJobsAreFoundByPolling(t *testing.T) {
	t.Parallel()

	f := newFastFleet(t, fleet.Options{})
	f.GitHub.SetFaults(control.Faults{WebhookLost: 1})
	f.Populate(0)

	pool := f.NewPool(5)
	pool.Name, pool.Spec.Demand = "polled", newPolling(time.Second)
	f.Create(pool)
	f.Start()
	f.EventuallyReady(f.NewTemplate())

	queueJobs(f, 1)
	f.EventuallyJobsDone(1)
	f.Stop()
	queueJobs(f, 2)
	f.Start()
	f.EventuallyJobsDone(3)
	f.EventuallyClean()

	if made := f.CountClones(); made != 3 {
		t.Errorf("%d VMs were created for 3 jobs", made)
	}
}

// TestPoolWithoutDemandSource checks that an organization's pool without webhook and without repositories to poll
// reports what to do, and gets jobs after that.
func TestPoolWithoutDemandSource(t *testing.T) {
	t.Parallel()

	f := newFastFleet(t, fleet.Options{})
	f.GitHub.SetFaults(control.Faults{WebhookLost: 1})
	f.Populate(0)

	pool := func(name string, most int32, change func(*v1alpha1.RunnerPoolSpec)) *v1alpha1.RunnerPool {
		pool := f.NewPool(most)
		pool.Name, pool.Spec.Demand = name, newPolling(time.Second)
		pool.Spec.Workload.Config.GitHub.Organization, pool.Spec.Workload.Webhook = "octo-org", nil
		change(&pool.Spec)
		f.Create(pool)

		return pool
	}

	unserved := pool("unserved", 5, func(*v1alpha1.RunnerPoolSpec) {})
	scaledToZero := pool("scaled-to-zero", 0, func(*v1alpha1.RunnerPoolSpec) {})
	hooked := pool("hooked", 5, func(spec *v1alpha1.RunnerPoolSpec) {
		spec.Workload.Webhook = f.NewPool(0).Spec.Workload.Webhook
		spec.Workload.Config.GitHub.Labels = []string{"other"}
	})

	f.Start()
	f.EventuallyReady(f.NewTemplate())

	checkContains(t, f.EventuallyCondition(unserved, "DemandSourcesReady", metav1.ConditionFalse, "RepositoriesMissing"),
		"the operator receives no jobs", "organization octo-org", "spec.demand.polling.repositories", "spec.workload.webhook")
	f.EventuallyCondition(scaledToZero, "DemandSourcesReady", metav1.ConditionTrue, "NotPolled")
	checkContains(t, f.EventuallyCondition(hooked, "DemandSourcesReady", metav1.ConditionTrue, "NotPolled"),
		"the operator receives jobs by webhooks only")

	updateObject(f, unserved, func() { unserved.Spec.Demand.Polling.Repositories = []string{"octo-org/octo-repo"} })
	queueJobs(f, 1)
	f.EventuallyCondition(unserved, "DemandSourcesReady", metav1.ConditionTrue, "SourcesReady")
	f.EventuallyJobsDone(1)
	f.EventuallyClean()
}

// TestFailedWebhooksAreRedelivered checks that failed webhook deliveries are requested again when the operator
// starts.
func TestFailedWebhooksAreRedelivered(t *testing.T) {
	t.Parallel()

	f := newFastFleet(t, fleet.Options{})
	f.Populate(0)

	pool := f.NewPool(5)
	pool.Name, pool.Spec.Demand = "hooked", &v1alpha1.DemandSources{Polling: &v1alpha1.Polling{Disabled: true}}
	f.Create(pool)
	queueJobs(f, 2)
	f.GitHub.WaitUntil("the webhooks fail", func(s control.State) bool { return s.Webhooks.Failed == 2 })

	f.Start()
	f.EventuallyJobsDone(2)
	f.EventuallyClean()
}

// TestUnmatchedJobReportsReason checks that a job that matches no pool reports the reason.
func TestUnmatchedJobReportsReason(t *testing.T) {
	t.Parallel()

	f := newFastFleet(t, fleet.Options{})
	f.Populate(3)
	f.Start()
	f.EventuallyReady(f.NewTemplate())
	f.GitHub.Queue(control.JobSpec{Labels: []string{"linux", "gpu"}})

	f.Eventually("the job reporting why it waits", func() (bool, string) {
		var jobs v1alpha1.RunnerJobList
		if err := f.Client.List(t.Context(), &jobs, client.InNamespace(f.Namespace)); err != nil || len(jobs.Items) == 0 {
			return false, fmt.Sprint(err)
		}

		var moments []string
		for _, event := range jobs.Items[0].Status.Timeline {
			moments = append(moments, string(event.Moment)+" "+event.Message)
		}

		text := strings.Join(moments, "; ")

		return strings.Contains(text, "Waiting") && strings.Contains(text, "lacks [gpu]"), text
	})
}

// TestAnyLabelIsEnough checks that a pool with labelMatch Any runs a job that also requests labels of no pool, because its
// runner gets them: GitHub assigns a job only to runners with all of its labels.
func TestAnyLabelIsEnough(t *testing.T) {
	t.Parallel()

	f := newFastFleet(t, fleet.Options{})
	pool := f.NewPool(2)
	pool.Spec.LabelMatch = v1alpha1.LabelMatchAny
	createAndStart(f, f.NewTemplate(), pool)
	f.EventuallyReady(pool)
	f.GitHub.Queue(control.JobSpec{Labels: []string{"linux", "team-blue", "nightly"}, Duration: 50 * time.Millisecond})
	f.EventuallyJobsDone(1)
	f.EventuallyClean()
}

// TestLoad checks a pool on several clusters: each cluster creates machines, and all machines are deleted in the
// end, although the pool is scaled faster than machines start and stop.
func TestLoad(t *testing.T) {
	t.Parallel()
	runLoad(t, 3, 6, 10, 0, 10, 0)
}

// TestSoakLoad is the load test of the requirements document: ten clusters, fifty machines at the same time.
func TestSoakLoad(t *testing.T) {
	property.Soak(t)
	t.Parallel()
	runLoad(t, 10, 50, 10, 0, 6, 1, 10, 0)
}

// runLoad runs a job on each machine, and then sets the minimum of the pool to shares of the machines, in tenths.
func runLoad(t *testing.T, clusters int, machines int32, shares ...int32) {
	t.Helper()

	f := newFastFleet(t, fleet.Options{GitHub: simgithub.Options{Unlimited: true}})
	f.Populate(0)

	pool := f.NewPool(machines)
	pool.Name = "load"
	pool.Spec.Placement = &v1alpha1.Placement{Strategy: v1alpha1.PlacementSpread}
	pool.Spec.Scaling.ScaleDownDelay = &metav1.Duration{Duration: 100 * time.Millisecond}

	sites := make([]*fleet.Site, clusters)
	for i := range sites {
		sites[i] = f.NewSite(fmt.Sprintf("site-%d", i), fleet.Model())

		if i == 0 {
			pool.Spec.TemplateRef.Name = sites[i].Template.Name

			continue
		}

		pool.Spec.Placement.TemplateRefs = append(pool.Spec.Placement.TemplateRefs,
			v1alpha1.LocalObjectReference{Name: sites[i].Template.Name})
	}

	f.Start()

	for _, site := range sites {
		f.EventuallyReady(site.Template)
	}

	f.GitHub.Queue(control.JobSpec{Labels: []string{"linux"}, Count: int(machines), Duration: 200 * time.Millisecond})
	f.Create(pool)
	f.EventuallyJobsDone(int(machines))

	for _, site := range sites {
		if !slices.ContainsFunc(site.PVE.Snapshot().Tasks, func(task pve.TaskState) bool { return task.Type == "qmclone" }) {
			t.Errorf("cluster %s created no machine", site.Cluster.Name)
		}
	}

	for _, share := range shares {
		updateObject(f, pool, func() { pool.Spec.Scaling.MinReplicas = machines * share / 10 })
		time.Sleep(200 * time.Millisecond) // shorter than the life of a machine
	}

	f.EventuallyClean()
}
