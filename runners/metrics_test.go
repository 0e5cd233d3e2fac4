// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runners_test

import (
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/metrics"
	"github.com/hyperfleet/hyperfleet/test/alerts"
	"github.com/hyperfleet/hyperfleet/test/scrape"
)

func newReadyConditions(status metav1.ConditionStatus, reason string) []metav1.Condition {
	return []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: status, Reason: reason}}
}

// newMeasuredObjects returns a pool with too few machines, its jobs, and a cluster with an excluded node.
func newMeasuredObjects(now time.Time) []client.Object {
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "ci", Name: name} }
	job := func(name, pool string, state v1alpha1.JobState, waited time.Duration, conditions []metav1.Condition) client.Object {
		return &v1alpha1.RunnerJob{
			ObjectMeta: meta(name),
			Spec:       v1alpha1.RunnerJobSpec{State: state, QueuedAt: &metav1.Time{Time: now.Add(-waited)}},
			Status:     v1alpha1.RunnerJobStatus{Pool: pool, Conditions: conditions},
		}
	}
	waits := newReadyConditions(metav1.ConditionFalse, "AtMaximum")
	received := job("f", "", v1alpha1.JobQueued, 10*time.Second, nil) // its status is not written yet
	stuck := job("g", "", v1alpha1.JobQueued, 10*time.Minute, nil)    // no operator writes its status

	for job, age := range map[client.Object]time.Duration{received: 10 * time.Second, stuck: 10 * time.Minute} {
		job.SetLabels(map[string]string{v1alpha1.LabelRunnerPool: "linux"})
		job.SetCreationTimestamp(metav1.NewTime(now.Add(-age)))
	}

	return []client.Object{
		&v1alpha1.RunnerPool{
			ObjectMeta: meta("linux"),
			Spec:       v1alpha1.RunnerPoolSpec{Scaling: v1alpha1.Scaling{MinReplicas: 1, MaxReplicas: 5}},
			Status: v1alpha1.RunnerPoolStatus{
				Conditions: newReadyConditions(metav1.ConditionTrue, "AsDesired"), Replicas: 5, ReadyReplicas: 3, BusyReplicas: 2, DesiredReplicas: 5,
				QueuedJobs: 2, RunningJobs: 2, FailedClaims: 1, StandbyReplicas: 1,
			},
		},
		job("a", "linux", v1alpha1.JobQueued, time.Minute, waits), job("b", "linux", v1alpha1.JobQueued, time.Hour, waits),
		job("c", "linux", v1alpha1.JobRunning, 2*time.Hour, nil), job("d", "", v1alpha1.JobQueued, 30*time.Second, nil),
		job("e", "linux", v1alpha1.JobWaiting, 5*time.Hour, newReadyConditions(metav1.ConditionFalse, "Gated")), received, stuck,
		&v1alpha1.MachineClaim{ObjectMeta: meta("m"), Status: v1alpha1.MachineClaimStatus{Phase: v1alpha1.MachineClaimReady}},
		&v1alpha1.MachineClaim{ObjectMeta: meta("n"), Spec: v1alpha1.MachineClaimSpec{RunnerPoolRef: &v1alpha1.LocalObjectReference{Name: "linux"}}},
		&v1alpha1.HypervisorCluster{
			ObjectMeta: metav1.ObjectMeta{Name: "rack"},
			Status: v1alpha1.HypervisorClusterStatus{Machines: 7, Conditions: newReadyConditions(metav1.ConditionTrue, "Connected"), Nodes: []v1alpha1.HypervisorNodeStatus{{
				Name: "pve1", Online: true, Conditions: newReadyConditions(metav1.ConditionFalse, "Excluded"),
				Capacity:  &v1alpha1.ResourceAmounts{CPU: 8, Memory: resource.MustParse("16Gi")},
				Available: &v1alpha1.ResourceAmounts{CPU: 3, Memory: resource.MustParse("4Gi")},
			}}},
		},
	}
}

// TestOutdatedRunnerRaisesAlert checks that the alert fires if machines run a release of the runner that was replaced more
// than 20 days ago.
func TestOutdatedRunnerRaisesAlert(t *testing.T) {
	t.Parallel()

	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	template := &v1alpha1.HypervisorMachineTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ci", Name: "linux"},
		Status: v1alpha1.HypervisorMachineTemplateStatus{Runner: &v1alpha1.RunnerRelease{
			Version: "2.331.0", MachineVersion: "2.331.0", Since: metav1.NewTime(now.Add(-21 * 24 * time.Hour)),
		}},
	}
	unknown := &v1alpha1.HypervisorMachineTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ci", Name: "unused"},
		Status:     v1alpha1.HypervisorMachineTemplateStatus{Runner: &v1alpha1.RunnerRelease{Version: "2.331.0"}},
	}
	objects := fake.NewClientBuilder().WithScheme(env.Scheme).WithObjects(template, unknown).Build()
	elected := make(chan struct{})
	close(elected)

	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics.NewCollector(objects, elected, clocktesting.NewFakePassiveClock(now)))

	server := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	defer server.Close()

	history := alerts.NewHistory(t, server.URL)

	template.Status.Runner.MachineVersion = "2.330.0"
	if err := objects.Update(t.Context(), template); err != nil {
		t.Fatal(err)
	}

	history.WaitUntilFiring(alerts.Continues, []string{"HyperFleetRunnerOutdated"},
		[]string{"hyperfleet_runner_newer_release_age_seconds"})
}

const wantSeries = `
hyperfleet_cluster_machines{cluster="rack"} 7
hyperfleet_jobs_oldest_queued_age_seconds{namespace="ci",pool=""} 30
hyperfleet_jobs_oldest_queued_age_seconds{namespace="ci",pool="linux"} 3600
hyperfleet_jobs_waiting{namespace="ci",pool="",reason="NotReconciled"} 1
hyperfleet_jobs_waiting{namespace="ci",pool="linux",reason="AtMaximum"} 2
hyperfleet_jobs_waiting{namespace="ci",pool="linux",reason="Gated"} 1
hyperfleet_jobs_waiting{namespace="ci",pool="linux",reason="NotReconciled"} 1
hyperfleet_jobs_waiting{namespace="ci",pool="linux",reason="WaitingForMachine"} 1
hyperfleet_machines{namespace="ci",phase="Pending",pool="linux"} 1
hyperfleet_machines{namespace="ci",phase="Ready",pool=""} 1
hyperfleet_node_available{cluster="rack",node="pve1",resource="cpu",unit="core"} 3
hyperfleet_node_available{cluster="rack",node="pve1",resource="memory",unit="byte"} 4.294967296e+09
hyperfleet_node_available{cluster="rack",node="pve1",resource="storage",unit="byte"} 0
hyperfleet_node_capacity{cluster="rack",node="pve1",resource="cpu",unit="core"} 8
hyperfleet_node_capacity{cluster="rack",node="pve1",resource="memory",unit="byte"} 1.7179869184e+10
hyperfleet_node_capacity{cluster="rack",node="pve1",resource="storage",unit="byte"} 0
hyperfleet_node_online{cluster="rack",node="pve1"} 1
hyperfleet_node_excluded{cluster="rack",node="pve1"} 1
hyperfleet_object_ready{kind="HypervisorCluster",name="rack",namespace=""} 1
hyperfleet_objects{kind="HypervisorCluster",namespace="",ready="True",reason="Connected"} 1
hyperfleet_objects{kind="RunnerJob",namespace="ci",ready="False",reason="AtMaximum"} 2
hyperfleet_objects{kind="RunnerJob",namespace="ci",ready="False",reason="Gated"} 1
hyperfleet_objects{kind="RunnerJob",namespace="ci",ready="Unknown",reason="NotReconciled"} 4
hyperfleet_pool_consecutive_failures{namespace="ci",pool="linux"} 1
hyperfleet_pool_jobs_queued{namespace="ci",pool="linux"} 2
hyperfleet_pool_jobs_running{namespace="ci",pool="linux"} 2
hyperfleet_pool_machines{namespace="ci",pool="linux",state="busy"} 2
hyperfleet_pool_machines{namespace="ci",pool="linux",state="idle"} 1
hyperfleet_pool_machines{namespace="ci",pool="linux",state="standby"} 1
hyperfleet_pool_machines{namespace="ci",pool="linux",state="starting"} 2
hyperfleet_pool_machines_desired{namespace="ci",pool="linux"} 5
hyperfleet_pool_machines_max{namespace="ci",pool="linux"} 5
hyperfleet_pool_machines_min{namespace="ci",pool="linux"} 1
hyperfleet_pool_paused{namespace="ci",pool="linux"} 0
`

func TestCollect(t *testing.T) {
	t.Parallel()

	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	reader := fake.NewClientBuilder().WithScheme(env.Scheme).WithObjects(newMeasuredObjects(now)...).Build()
	elected := make(chan struct{})
	pools := metrics.NewCollector(reader, elected, clocktesting.NewFakePassiveClock(now))
	ready := step.NewReadinessCollector(reader, elected,
		step.ReadinessKind{Name: "HypervisorCluster", PerObject: true, NewList: func() client.ObjectList { return &v1alpha1.HypervisorClusterList{} }},
		step.ReadinessKind{Name: "RunnerJob", NewList: func() client.ObjectList { return &v1alpha1.RunnerJobList{} }})

	if n := testutil.CollectAndCount(pools) + testutil.CollectAndCount(ready); n != 0 {
		t.Errorf("%d series on a replica that is not the leader", n)
	}

	close(elected)

	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(pools, ready)

	text, err := scrape.Render(registry)
	if err != nil {
		t.Fatal(err)
	}

	var got []string

	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") {
			got = append(got, strings.TrimSpace(line))
		}
	}

	want := strings.Split(strings.TrimSpace(wantSeries), "\n")

	slices.Sort(want)
	slices.Sort(got)

	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}

	problems, err := testutil.CollectAndLint(pools)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
}
