// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runnerpool

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/demand"
	"github.com/hyperfleet/hyperfleet/test/heap"
)

func newMicroTime(t time.Time) *metav1.MicroTime {
	m := metav1.NewMicroTime(t)

	return &m
}

func TestStateOf(t *testing.T) {
	t.Parallel()

	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	runner := &v1alpha1.BootstrapInfo{RunnerName: "r"}
	vm := &v1alpha1.VMReference{VMID: "100"}

	cases := map[string]struct {
		status  v1alpha1.MachineClaimStatus
		deleted bool
		standby bool
		job     v1alpha1.JobState
		want    demand.ClaimState
	}{
		"no machine yet":                  {want: demand.ClaimPending},
		"id recorded":                     {status: v1alpha1.MachineClaimStatus{VMRef: vm}, want: demand.ClaimBooting},
		"runner online":                   {status: v1alpha1.MachineClaimStatus{VMRef: vm, BootstrapInfo: runner, Times: &v1alpha1.MachineTimes{Ready: newMicroTime(now)}}, want: demand.ClaimIdle},
		"runner has a job":                {status: v1alpha1.MachineClaimStatus{VMRef: vm, BootstrapInfo: runner}, job: v1alpha1.JobRunning, want: demand.ClaimBusy},
		"the claim knows of a job first":  {status: v1alpha1.MachineClaimStatus{VMRef: vm, BootstrapInfo: runner, Times: &v1alpha1.MachineTimes{JobStarted: newMicroTime(now)}}, want: demand.ClaimBusy},
		"its job is over, the VM not yet": {status: v1alpha1.MachineClaimStatus{VMRef: vm, BootstrapInfo: runner, Times: &v1alpha1.MachineTimes{JobStarted: newMicroTime(now)}}, job: v1alpha1.JobCompleted, want: demand.ClaimFinishing},
		"on standby, no machine yet":      {standby: true, want: demand.ClaimStandby},
		"on standby, id recorded":         {standby: true, status: v1alpha1.MachineClaimStatus{VMRef: vm}, want: demand.ClaimStandby},
		"its life is over":                {status: v1alpha1.MachineClaimStatus{VMRef: vm, BootstrapInfo: runner, Times: &v1alpha1.MachineTimes{Ready: newMicroTime(now), Ended: newMicroTime(now)}}, want: demand.ClaimFinishing},
		"being deleted, whatever else":    {status: v1alpha1.MachineClaimStatus{VMRef: vm, BootstrapInfo: runner}, deleted: true, job: v1alpha1.JobRunning, want: demand.ClaimFinishing},
		"failed before it had a machine":  {status: v1alpha1.MachineClaimStatus{Phase: v1alpha1.MachineClaimFailed, Times: &v1alpha1.MachineTimes{Ended: newMicroTime(now)}}, want: demand.ClaimFinishing},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			claim := &v1alpha1.MachineClaim{Spec: v1alpha1.MachineClaimSpec{Standby: tc.standby}, Status: tc.status}
			if tc.deleted {
				claim.DeletionTimestamp = &metav1.Time{Time: now}
			}

			if got := evaluateClaim(claim, map[string]v1alpha1.JobState{"r": tc.job}); got.State != tc.want {
				t.Errorf("stateOf() = %s, want %s", got.State, tc.want)
			}
		})
	}
}

// A machine that has run its job and is powering off is not idle, and its job is no longer queued, although
// the CI platform has not reported the job's end.
func TestJobKnownOnlyToMachine(t *testing.T) {
	t.Parallel()

	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	claim := func(phase guest.Phase, reason string) v1alpha1.MachineClaim {
		return v1alpha1.MachineClaim{Status: v1alpha1.MachineClaimStatus{
			BootstrapInfo: &v1alpha1.BootstrapInfo{RunnerName: "r", GuestPhase: string(phase), GuestReason: reason},
			Times:         &v1alpha1.MachineTimes{Ready: newMicroTime(now.Add(-time.Minute))},
		}}
	}

	for name, tc := range map[string]struct {
		claim v1alpha1.MachineClaim
		state demand.ClaimState
		taken int
	}{
		"it waits for one": {claim(guest.PhaseListening, ""), demand.ClaimIdle, 0},
		"it runs one":      {claim(guest.PhaseRunning, ""), demand.ClaimBusy, 1},
		"it has run one":   {claim(guest.PhaseFinished, guest.ReasonJobDone), demand.ClaimFinishing, 1},
		"it had none":      {claim(guest.PhaseFinished, guest.ReasonIdleTimeout), demand.ClaimFinishing, 0},
		"it failed":        {claim(guest.PhaseFailed, "RunnerMissing"), demand.ClaimFinishing, 0},
	} {
		var starts unconfirmedStarts

		counted, _ := starts.count([]v1alpha1.MachineClaim{tc.claim}, nil, now)
		taken := counted[""]
		if state := evaluateClaim(&tc.claim, nil).State; state != tc.state || taken != tc.taken {
			t.Errorf("%s: it is %s, and took %d jobs; want %s, %d", name, state, taken, tc.state, tc.taken)
		}
	}
}

func TestCountFailuresCountsEachEndOnce(t *testing.T) {
	t.Parallel()

	start := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	timestamp := func(seconds int) *metav1.MicroTime {
		return newMicroTime(start.Add(time.Duration(seconds) * time.Second))
	}
	claim := func(times v1alpha1.MachineTimes) v1alpha1.MachineClaim {
		return v1alpha1.MachineClaim{Status: v1alpha1.MachineClaimStatus{Times: &times}}
	}

	var status v1alpha1.RunnerPoolStatus

	claims := []v1alpha1.MachineClaim{
		claim(v1alpha1.MachineTimes{Ended: timestamp(10)}),
		claim(v1alpha1.MachineTimes{Ended: timestamp(20)}),
		claim(v1alpha1.MachineTimes{Ready: timestamp(5), Ended: timestamp(30)}), // it became ready, so it did not fail
		{}, // nothing is known yet
		{ // never started
			Spec:   v1alpha1.MachineClaimSpec{Standby: true},
			Status: v1alpha1.MachineClaimStatus{Times: &v1alpha1.MachineTimes{Ended: timestamp(30)}},
		},
		{ // its job was cancelled
			Status: v1alpha1.MachineClaimStatus{EndReason: guest.ReasonJobGone, Times: &v1alpha1.MachineTimes{Ended: timestamp(30)}},
		},
	}

	countFailures(&status, claims)

	if status.FailedClaims != 2 {
		t.Fatalf("failed claims = %d, want 2", status.FailedClaims)
	}

	countFailures(&status, claims)

	if status.FailedClaims != 2 {
		t.Errorf("a second call counted the failures again: %d", status.FailedClaims)
	}

	claims = append(claims, claim(v1alpha1.MachineTimes{Ended: timestamp(40)}))
	countFailures(&status, claims)

	if status.FailedClaims != 3 {
		t.Errorf("a new failure: %d, want 3", status.FailedClaims)
	}

	countFailures(&status, append(claims, claim(v1alpha1.MachineTimes{Ready: timestamp(50)})))

	if status.FailedClaims != 0 {
		t.Errorf("after a machine became ready: %d, want 0", status.FailedClaims)
	}
}

// A machine whose status does not have yet that its runner was online counts as online from the time at which its job is
// known. Otherwise a pool of short jobs would stay in the back-off after failures.
func TestRunnerWithJobWasOnline(t *testing.T) {
	t.Parallel()

	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	newClaims := func() []v1alpha1.MachineClaim {
		out := make([]v1alpha1.MachineClaim, 4)
		for i, runner := range []string{"busy", "done", "booting", "recorded"} {
			out[i].UID, out[i].CreationTimestamp = types.UID(runner), metav1.NewTime(now.Add(-time.Minute))
			out[i].Status.BootstrapInfo = &v1alpha1.BootstrapInfo{RunnerName: runner}
		}

		out[3].Status.Times = &v1alpha1.MachineTimes{Ready: newMicroTime(now.Add(-time.Second))}

		return out
	}
	jobs := map[string]v1alpha1.JobState{
		"busy": v1alpha1.JobRunning, "done": v1alpha1.JobCompleted, "recorded": v1alpha1.JobRunning,
	}

	var online onlineTimes

	cached := newClaims()
	online.addTo(append([]v1alpha1.MachineClaim{}, cached...), jobs, now)

	if cached[0].Status.Times != nil {
		t.Error("a claim of the cache was changed")
	}

	claims := newClaims()
	online.addTo(claims, jobs, now.Add(time.Minute))

	for i, want := range []*metav1.MicroTime{newMicroTime(now), newMicroTime(now), nil, newMicroTime(now.Add(-time.Second))} {
		var got *metav1.MicroTime
		if times := claims[i].Status.Times; times != nil {
			got = times.Ready
		}

		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("runner %s: %s", claims[i].UID, diff)
		}
	}

	status := v1alpha1.RunnerPoolStatus{FailedClaims: 5, LastFailureTime: &metav1.Time{Time: now.Add(-time.Minute)}}
	countFailures(&status, claims[:1])

	var known startups

	known.record(claims[:1])

	if status.FailedClaims != 0 || known.median() != time.Minute {
		t.Errorf("%d failures, start-up %s; want 0, 1m", status.FailedClaims, known.median())
	}

	online.addTo(nil, nil, now)

	if len(online.times) > 0 {
		t.Errorf("the times of deleted claims are kept: %v", online.times)
	}
}

func TestMachineAheadOfWebhookCountsAsJob(t *testing.T) {
	t.Parallel()

	var memory unconfirmedStarts

	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	claims := []v1alpha1.MachineClaim{
		{Status: v1alpha1.MachineClaimStatus{BootstrapInfo: &v1alpha1.BootstrapInfo{RunnerName: "a", GuestPhase: "Running"}}},
		{Status: v1alpha1.MachineClaimStatus{BootstrapInfo: &v1alpha1.BootstrapInfo{RunnerName: "b", GuestPhase: "Listening"}}},
	}

	steps := []struct {
		name   string
		claims []v1alpha1.MachineClaim
		jobs   map[string]v1alpha1.JobState
		after  time.Duration
		want   int
	}{
		{"it runs a job that is queued in the ledger", claims, nil, 0, 1},
		{"it is deleted before the webhook arrives", nil, nil, time.Second, 1},
		{"the webhook has arrived", nil, map[string]v1alpha1.JobState{"a": v1alpha1.JobRunning}, 2 * time.Second, 0},
		{"the job is not counted again", nil, nil, 3 * time.Second, 0},
		{"another job", claims, nil, 4 * time.Second, 1},
		{"its webhook never arrives", nil, nil, time.Hour, 0},
	}
	for _, step := range steps {
		counted, _ := memory.count(step.claims, step.jobs, now.Add(step.after))
		if got := counted[""]; got != step.want {
			t.Errorf("%s: %d, want %d", step.name, got, step.want)
		}
	}
}

// A claim has the labels and annotations that its template specifies.
func TestNewClaimHasTheTemplatesMetadata(t *testing.T) {
	t.Parallel()

	template := &v1alpha1.HypervisorMachineTemplate{}
	template.Spec.Metadata = &v1alpha1.MachineMetadata{
		Labels: map[string]string{"team": "a", v1alpha1.LabelRunnerPool: "another"}, Annotations: map[string]string{"note": "b"},
	}

	pool := &v1alpha1.RunnerPool{}
	pool.Name = "linux"

	claim := newClaim(pool, machineRequest{source: &source{name: "small", template: template, hash: "h"}}, "linux-1")

	if claim.Labels["team"] != "a" || claim.Annotations["note"] != "b" {
		t.Errorf("labels %v, annotations %v", claim.Labels, claim.Annotations)
	}

	if claim.Labels[v1alpha1.LabelRunnerPool] != "linux" || claim.Labels["hyperfleet.io/template"] != "small" {
		t.Errorf("the operator's labels were removed: %v", claim.Labels)
	}
}

// A pool's claim has the pool's workload and limits, and names the pool and the template.
func TestNewClaimHasTheSpecOfThePool(t *testing.T) {
	t.Parallel()

	limit := func(d time.Duration) *metav1.Duration { return &metav1.Duration{Duration: d} }
	pool := &v1alpha1.RunnerPool{ObjectMeta: metav1.ObjectMeta{Namespace: "ci", Name: "linux"}}
	pool.Spec.Workload = v1alpha1.Workload{
		Type: v1alpha1.WorkloadGitHubActions, Config: &v1alpha1.WorkloadConfig{GitHub: &v1alpha1.GitHubActionsConfig{Labels: []string{"x"}}},
	}
	pool.Spec.Lifecycle = &v1alpha1.Lifecycle{MaxLifetime: limit(time.Hour), IdleTimeout: limit(5 * time.Minute), JobTimeout: limit(30 * time.Minute)}

	template := &v1alpha1.HypervisorMachineTemplate{}
	claim := newClaim(pool, machineRequest{source: &source{name: "small", template: template}}, "linux-1")
	want := v1alpha1.MachineClaimSpec{
		TemplateRef: v1alpha1.LocalObjectReference{Name: "small"}, RunnerPoolRef: &v1alpha1.LocalObjectReference{Name: "linux"},
		WorkloadConfig: pool.Spec.Workload,
		Lifecycle:      &v1alpha1.Lifecycle{MaxLifetime: limit(time.Hour), IdleTimeout: limit(5 * time.Minute), JobTimeout: limit(30 * time.Minute)},
	}

	if diff := cmp.Diff(want, claim.Spec); diff != "" || claim.Namespace != "ci" {
		t.Errorf("namespace %s, spec (-want +got):\n%s", claim.Namespace, diff)
	}
}

func TestAssign(t *testing.T) {
	t.Parallel()

	const pack = v1alpha1.PlacementPack

	cases := map[string]struct {
		strategy string
		sources  []source
		n        int
		want     []string
	}{
		"none works":                        {"", []source{{name: "a", unusableReason: "broken"}}, 2, nil},
		"one by one where the fewest are":   {"", []source{{name: "a", machines: 2}, {name: "b"}}, 4, []string{"b", "b", "a", "b"}},
		"of equals the first":               {"", []source{{name: "b"}, {name: "a"}}, 1, []string{"b"}},
		"a full one comes last":             {"", []source{{name: "a", isFull: true}, {name: "b", machines: 9}}, 2, []string{"b", "b"}},
		"packed: the first":                 {pack, []source{{name: "a", machines: 9}, {name: "b"}}, 2, []string{"a", "a"}},
		"packed: the next when it is full":  {pack, []source{{name: "a", isFull: true}, {name: "b", machines: 9}}, 1, []string{"b"}},
		"packed: the first when all are":    {pack, []source{{name: "a", isFull: true}, {name: "b", isFull: true}}, 1, []string{"a"}},
		"one that doesn't work is left out": {pack, []source{{name: "a", unusableReason: "broken"}, {name: "b"}}, 1, []string{"b"}},
		"no claims are wanted":              {"", []source{{name: "a"}}, 0, nil},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var got []string
			for _, chosen := range chooseSources(test.strategy, test.sources, test.n) {
				got = append(got, chosen.name)
			}

			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("assign (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOutdates(t *testing.T) {
	t.Parallel()

	deleted := &v1alpha1.HypervisorMachineTemplate{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{Time: time.Unix(1, 0)}}}
	there := &v1alpha1.HypervisorMachineTemplate{}
	cases := map[string]struct {
		source source
		made   string
		want   bool
	}{
		"the same":                                        {source{template: there, hash: "a"}, "a", false},
		"another":                                         {source{template: there, hash: "a"}, "b", true},
		"created before machines recorded this":           {source{template: there, hash: "a"}, "", false},
		"a template that can't replace it":                {source{template: there, hash: "a", unusableReason: "broken"}, "b", false},
		"a template that is not there":                    {source{unusableReason: "missing"}, "b", false},
		"a template that is to go, unchanged":             {source{template: deleted, hash: "a", unusableReason: "deleted"}, "a", true},
		"a template that is being deleted stays outdated": {source{template: deleted, hash: "a", unusableReason: "deleted"}, "", true},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			claim := &v1alpha1.MachineClaim{}
			claim.Annotations = map[string]string{v1alpha1.AnnotationTemplateHash: test.made}

			if got := test.source.isOutdated(claim); got != test.want {
				t.Errorf("outdates = %t", got)
			}
		})
	}
}

// The hash of a machine depends on its template and its workload, and not on the signatures of webhooks.
func TestHashOf(t *testing.T) {
	t.Parallel()

	hash := func(change func(*v1alpha1.HypervisorMachineTemplate, *v1alpha1.Workload)) string {
		template := &v1alpha1.HypervisorMachineTemplate{}
		template.Spec.Resources.CPU = 2
		workload := &v1alpha1.Workload{Type: v1alpha1.WorkloadGitHubActions, Webhook: &v1alpha1.Webhook{}}
		change(template, workload)

		out, err := computeHash(template, workload)
		if err != nil {
			t.Fatal(err)
		}

		return out
	}
	same := hash(func(*v1alpha1.HypervisorMachineTemplate, *v1alpha1.Workload) {})

	for name, test := range map[string]struct {
		change func(*v1alpha1.HypervisorMachineTemplate, *v1alpha1.Workload)
		same   bool
	}{
		"nothing": {func(*v1alpha1.HypervisorMachineTemplate, *v1alpha1.Workload) {}, true},
		"a label on it": {func(t *v1alpha1.HypervisorMachineTemplate, _ *v1alpha1.Workload) {
			t.Labels = map[string]string{"a": "b"}
		}, true},
		"its status":    {func(t *v1alpha1.HypervisorMachineTemplate, _ *v1alpha1.Workload) { t.Status.ObservedGeneration = 7 }, true},
		"webhooks":      {func(_ *v1alpha1.HypervisorMachineTemplate, w *v1alpha1.Workload) { w.Webhook = nil }, true},
		"its resources": {func(t *v1alpha1.HypervisorMachineTemplate, _ *v1alpha1.Workload) { t.Spec.Resources.CPU = 4 }, false},
		"the VM that is cloned": {func(t *v1alpha1.HypervisorMachineTemplate, _ *v1alpha1.Workload) {
			t.Spec.Template.Proxmox = &v1alpha1.ProxmoxTemplate{TemplateID: new(int32(9001))}
		}, false},
		"the workload": {func(_ *v1alpha1.HypervisorMachineTemplate, w *v1alpha1.Workload) { w.Type = v1alpha1.WorkloadGeneric }, false},
		"another name": {func(t *v1alpha1.HypervisorMachineTemplate, _ *v1alpha1.Workload) { t.Name = "other" }, false},
	} {
		if got := hash(test.change) == same; got != test.same {
			t.Errorf("%s changed: the hash is the same: %t", name, got)
		}
	}
}

func TestStartupDurations(t *testing.T) {
	t.Parallel()

	var memory startups

	birth := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	machine := func(uid string, times v1alpha1.MachineTimes) v1alpha1.MachineClaim {
		return v1alpha1.MachineClaim{
			ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), CreationTimestamp: metav1.NewTime(birth)},
			Status:     v1alpha1.MachineClaimStatus{Times: &times},
		}
	}

	if got := memory.median(); got != demand.DefaultStartup {
		t.Errorf("without claims: %s", got)
	}

	claims := []v1alpha1.MachineClaim{
		machine("a", v1alpha1.MachineTimes{Ready: newMicroTime(birth.Add(20 * time.Second))}),
		machine("b", v1alpha1.MachineTimes{}),
		// On standby for an hour, then started within ten seconds.
		machine("c", v1alpha1.MachineTimes{Activated: newMicroTime(birth.Add(time.Hour)), Ready: newMicroTime(birth.Add(time.Hour + 10*time.Second))}),
		machine("d", v1alpha1.MachineTimes{Ready: newMicroTime(birth.Add(90 * time.Second))}),
	}

	for range 3 { // each counts once
		memory.record(claims)
	}

	if got := memory.median(); got != 20*time.Second {
		t.Errorf("median = %s, want 20s", got)
	}

	memory.record(nil)

	if got := memory.median(); got != 20*time.Second {
		t.Errorf("median = %s after the machines were deleted, want 20s", got)
	}
}

// State in memory about pools is freed when the pools are deleted.
func TestStateOfDeletedPoolsIsFreed(t *testing.T) { //nolint:paralleltest // it measures the heap
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}

	pools := &Reconciler{Client: fake.NewClientBuilder().WithScheme(scheme).Build()}

	heap.CheckNoLeak(t, "pools", func(number int) {
		name := types.NamespacedName{Namespace: "ns", Name: fmt.Sprintf("p%d", number)}
		known := pools.memories.get(name)
		known.expectations.expect("claim", expectedClaim{createdAt: time.Unix(1e9, 0)})
		known.startups.durations = make([]time.Duration, recentStartups)

		if _, err := pools.Reconcile(t.Context(), reconcile.Request{NamespacedName: name}); err != nil {
			t.Fatal(err)
		}
	})
}

// A machine from standby whose device a VM of others has cannot start on its node.
func TestActivatedMachineWithoutDeviceIsReplaced(t *testing.T) {
	t.Parallel()

	for reason, want := range map[string]bool{"NoCapacity": true, "DeviceInUse": true, "StartFailed": false} {
		claim := &v1alpha1.MachineClaim{Status: v1alpha1.MachineClaimStatus{
			Times: &v1alpha1.MachineTimes{Activated: &metav1.MicroTime{Time: time.Now()}},
			Conditions: []metav1.Condition{
				{Type: v1alpha1.ConditionProvisioned, Status: metav1.ConditionFalse, Reason: reason},
			},
		}}

		if got := isActivatedWithoutCapacity(claim); got != want {
			t.Errorf("a machine that waits with the reason %s is replaced: %t, want %t", reason, got, want)
		}
	}
}

// The status of a cluster has the memory of nodes in whole GiB, rounded down.
func TestNodesThatMayHoldMachine(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		nodes  []string
		memory string
		want   bool
	}{
		"no node is known":                 {nil, "64Gi", true},
		"the memory is unknown":            {[]string{"0"}, "64Gi", true},
		"one of the nodes is large enough": {[]string{"8Gi", "16Gi"}, "16Gi", true},
		"no node is large enough":          {[]string{"8Gi", "15Gi"}, "16Gi", false},
		"a node may be large enough":       {[]string{"15Gi"}, "15872Mi", true},
		"a small machine":                  {[]string{"2Gi"}, "512Mi", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			tested := source{template: &v1alpha1.HypervisorMachineTemplate{}}
			tested.template.Spec.Resources.Memory = resource.MustParse("1Gi")

			for _, memory := range tc.nodes {
				amounts := &v1alpha1.ResourceAmounts{Memory: resource.MustParse(memory)}
				tested.nodes = append(tested.nodes, v1alpha1.HypervisorNodeStatus{Capacity: amounts})
			}

			if got := tested.canHold(&v1alpha1.MachineSize{Memory: new(resource.MustParse(tc.memory))}); got != tc.want {
				t.Errorf("canHold() = %t, want %t", got, tc.want)
			}
		})
	}
}

// A pool looks again at machines that wait when a cluster gets a larger node. The free memory of nodes changes all the time.
func TestPoolSeesLargerNodes(t *testing.T) {
	t.Parallel()

	newCluster := func(capacity, available string) *v1alpha1.HypervisorCluster {
		out := &v1alpha1.HypervisorCluster{}
		out.Status.Nodes = []v1alpha1.HypervisorNodeStatus{{
			Name: "a", Available: &v1alpha1.ResourceAmounts{Memory: resource.MustParse(available)},
		}}

		if capacity != "" {
			out.Status.Nodes[0].Capacity = &v1alpha1.ResourceAmounts{Memory: resource.MustParse(capacity)}
		}

		return out
	}
	added := newCluster("16Gi", "8Gi")
	added.Status.Nodes = append(added.Status.Nodes, v1alpha1.HypervisorNodeStatus{Name: "b"})

	for name, tc := range map[string]struct {
		current *v1alpha1.HypervisorCluster
		want    bool
	}{
		"nothing":         {newCluster("16384Mi", "8Gi"), false},
		"free memory":     {newCluster("16Gi", "4Gi"), false},
		"total memory":    {newCluster("64Gi", "8Gi"), true},
		"no total memory": {newCluster("", "8Gi"), true},
		"another node":    {added, true},
	} {
		change := event.UpdateEvent{ObjectOld: newCluster("16Gi", "8Gi"), ObjectNew: tc.current}
		if got := newClusterPredicate().Update(change); got != tc.want {
			t.Errorf("%s: the update is accepted: %t, want %t", name, got, tc.want)
		}
	}
}
