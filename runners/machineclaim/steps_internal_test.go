// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/connect"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
)

func TestAddress(t *testing.T) {
	t.Parallel()

	birth := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	created := metav1.NewMicroTime(birth)
	addressed := &v1alpha1.NetworkInfo{Addresses: []string{"10.0.0.1/24"}}
	newConditions := func(status metav1.ConditionStatus, reason string) []metav1.Condition {
		return []metav1.Condition{
			{Type: v1alpha1.ConditionTemplateResolved, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(birth)},
			{Type: v1alpha1.ConditionAddressAllocated, Status: status, Reason: reason},
		}
	}
	resolved := newConditions("", "")[:1]

	cases := map[string]struct {
		mode   string
		status v1alpha1.MachineClaimStatus
		after  time.Duration
		// reason is empty if the step is done.
		reason string
	}{
		"no pool":                              {mode: v1alpha1.NetworkModeDHCP},
		"it runs without an address":           {status: v1alpha1.MachineClaimStatus{Times: &v1alpha1.MachineTimes{Started: &created}}},
		"template just resolved":               {reason: "AddressPending"},
		"no response yet":                      {status: v1alpha1.MachineClaimStatus{Conditions: resolved}, after: 59 * time.Second, reason: "AddressPending"},
		"no response":                          {status: v1alpha1.MachineClaimStatus{Conditions: resolved}, after: time.Minute, reason: ReasonNetworkingOff},
		"the allocation failed":                {status: v1alpha1.MachineClaimStatus{Conditions: newConditions("False", "PoolExhausted")}, after: time.Hour, reason: "PoolExhausted"},
		"it has an address":                    {status: v1alpha1.MachineClaimStatus{Conditions: newConditions("True", "Allocated"), NetworkInfo: addressed}},
		"another machine has the same address": {status: v1alpha1.MachineClaimStatus{Conditions: newConditions("False", "AddressConflict"), NetworkInfo: addressed}, reason: "AddressConflict"},
		"addresses without the condition":      {status: v1alpha1.MachineClaimStatus{Conditions: resolved, NetworkInfo: addressed}, reason: "AddressPending"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			network := &v1alpha1.MachineNetwork{Mode: v1alpha1.NetworkModeStatic, Static: &v1alpha1.StaticNetwork{Pool: &v1alpha1.AddressPool{}}}
			if tc.mode != "" {
				network.Mode = tc.mode
			}

			s := &scope{
				Reconciler: &Reconciler{Clock: clocktesting.NewFakePassiveClock(birth.Add(tc.after))},
				claim:      &v1alpha1.MachineClaim{Status: tc.status},
				template:   &v1alpha1.HypervisorMachineTemplate{Spec: v1alpha1.HypervisorMachineTemplateSpec{Network: network}},
			}

			got := waitForAddress(t.Context(), s)
			if got.IsDone() != (tc.reason == "") || (tc.reason != "" && got.Reason() != tc.reason) {
				t.Errorf("done %t, reason %q; want reason %q", got.IsDone(), got.Reason(), tc.reason)
			}
		})
	}
}

func TestDeadline(t *testing.T) {
	t.Parallel()

	birth := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	at := birth.Add

	cases := map[string]struct {
		limit   lifetimeLimits
		moments milestones
		now     time.Time
		reason  string
		next    time.Duration
	}{
		"no limits never end a machine": {
			moments: milestones{created: birth, ready: birth}, now: at(1000 * time.Hour),
		},
		"lifetime ends a busy machine as well": {
			limit:   lifetimeLimits{maxLifetime: time.Hour},
			moments: milestones{created: birth, ready: at(time.Minute), jobStarted: at(2 * time.Minute)},
			now:     at(time.Hour), reason: ReasonMaxLifetime,
		},
		"before the end of the lifetime, the requeue time is set": {
			limit: lifetimeLimits{maxLifetime: time.Hour}, moments: milestones{created: birth, ready: birth},
			now: at(50 * time.Minute), next: 10 * time.Minute,
		},
		"idle counts from ready": {
			limit: lifetimeLimits{idle: 5 * time.Minute}, moments: milestones{created: birth, ready: at(time.Minute)},
			now: at(6 * time.Minute), reason: ReasonIdleTimeout,
		},
		"idle time does not count after a job has started": {
			limit:   lifetimeLimits{idle: 5 * time.Minute},
			moments: milestones{created: birth, ready: birth, jobStarted: at(time.Minute)},
			now:     at(time.Hour),
		},
		"job counts from its start": {
			limit:   lifetimeLimits{job: 30 * time.Minute},
			moments: milestones{created: birth, ready: birth, jobStarted: at(10 * time.Minute)},
			now:     at(39 * time.Minute), next: time.Minute,
		},
		"the job exceeds its time limit": {
			limit:   lifetimeLimits{job: 30 * time.Minute},
			moments: milestones{created: birth, ready: birth, jobStarted: at(10 * time.Minute)},
			now:     at(40 * time.Minute), reason: ReasonJobTimeout,
		},
		"the nearest limit sets the requeue time": {
			limit:   lifetimeLimits{maxLifetime: time.Hour, idle: 10 * time.Minute},
			moments: milestones{created: birth, ready: at(5 * time.Minute)}, now: at(6 * time.Minute), next: 9 * time.Minute,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got := checkLimits(tc.limit, tc.moments, tc.now)
			if got.reason != tc.reason {
				t.Errorf("reason = %q, want %q", got.reason, tc.reason)
			}

			if tc.reason == "" && got.remaining != tc.next {
				t.Errorf("next = %s, want %s", got.remaining, tc.next)
			}

			if tc.reason != "" && got.message == "" {
				t.Error("a machine ended without a message")
			}
		})
	}
}

// A machine without a job does not end with JobDone. The metrics count successes by these end reasons, and
// pools count failures by all other end reasons.
func TestEndReason(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		phase       guest.Phase
		reason, job string
		want        string
	}{
		"it ran its job":                   {guest.PhaseFinished, guest.ReasonJobDone, "", "JobDone"},
		"the platform reports the job":     {guest.PhaseRunning, "", "gh-7", "JobDone"},
		"an older service gives no reason": {guest.PhaseFinished, "", "", "JobDone"},
		"another runner took its job":      {guest.PhaseFinished, guest.ReasonJobGone, "", "JobGone"},
		"no job arrived":                   {guest.PhaseFinished, guest.ReasonIdleTimeout, "", "IdleTimeout"},
		"it was stopped":                   {guest.PhaseFinished, guest.ReasonTerminated, "", "Terminated"},
		"it was stopped during its job":    {guest.PhaseFinished, guest.ReasonTerminated, "gh-7", "Terminated"},
		"it failed":                        {guest.PhaseFailed, guest.ReasonRunnerFailed, "gh-7", "GuestFailed"},
		"no report":                        {guest.PhaseListening, "", "", "VMStopped"},
		"an unknown reason":                {guest.PhaseFinished, "Whatever", "", "VMStopped"},
		"another reason, and it had a job": {guest.PhaseFinished, "Whatever", "gh-7", "JobDone"},
	} {
		got := endReasonOf(&v1alpha1.BootstrapInfo{GuestPhase: string(tc.phase), GuestReason: tc.reason, Job: tc.job})
		if got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}

// If the pool keeps failed machines, machines are kept that were started and failed. Machines that ran
// their job, or had no job to run, are not kept.
func TestKeepable(t *testing.T) {
	t.Parallel()

	now := metav1.NowMicro()
	cases := map[string]struct {
		change func(*v1alpha1.MachineClaim)
		want   bool
	}{
		"its runner never came online":           {func(*v1alpha1.MachineClaim) {}, true},
		"its bootstrap failed":                   {func(c *v1alpha1.MachineClaim) { c.Status.EndReason = "BootstrapFailed" }, true},
		"the pool does not keep failed machines": {func(c *v1alpha1.MachineClaim) { c.Spec.Lifecycle.KeepFailed = nil }, false},
		"no pool":                                {func(c *v1alpha1.MachineClaim) { c.Spec.RunnerPoolRef = nil }, false},
		"it has not ended":                       {func(c *v1alpha1.MachineClaim) { c.Status.Times.Ended = nil }, false},
		"it never started":                       {func(c *v1alpha1.MachineClaim) { c.Status.Times.Started = nil }, false},
		"there is no machine":                    {func(c *v1alpha1.MachineClaim) { c.Status.VMRef = nil }, false},
		"no job was left for it":                 {func(c *v1alpha1.MachineClaim) { c.Status.EndReason = v1alpha1.EndReasonNoJob }, false},
		"it ran its job":                         {func(c *v1alpha1.MachineClaim) { c.Status.EndReason, c.Status.Times.Ready = "JobDone", &now }, false},
		"it was idle for too long":               {func(c *v1alpha1.MachineClaim) { c.Status.EndReason, c.Status.Times.Ready = "IdleTimeout", &now }, false},
		"its runner failed in its job": {func(c *v1alpha1.MachineClaim) {
			c.Status.EndReason, c.Status.Times.Ready = "GuestFailed", &now
			c.Status.BootstrapInfo.GuestPhase = string(guest.PhaseFailed)
		}, true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			claim := &v1alpha1.MachineClaim{
				Spec: v1alpha1.MachineClaimSpec{
					RunnerPoolRef: &v1alpha1.LocalObjectReference{Name: "linux"},
					Lifecycle:     &v1alpha1.Lifecycle{KeepFailed: &v1alpha1.KeepFailed{Machines: 1}},
				},
				Status: v1alpha1.MachineClaimStatus{
					VMRef: &v1alpha1.VMReference{VMID: "105"}, EndReason: "BootstrapTimeout",
					Times: &v1alpha1.MachineTimes{Started: &now, Ended: &now}, BootstrapInfo: &v1alpha1.BootstrapInfo{},
				},
			}
			tc.change(claim)

			if got := shouldKeep(claim); got != tc.want {
				t.Errorf("shouldKeep is %v, want %v", got, tc.want)
			}
		})
	}
}

// guidedProvider has its own tools for consoles.
type guidedProvider struct{ hypervisor.Provider }

func (guidedProvider) DescribeConsole(ref hypervisor.MachineRef, node string) string {
	return fmt.Sprintf("open %s %d on %s", ref.Owner.Name, ref.ID, node)
}

type terminalProvider struct{ guidedProvider }

func (terminalProvider) OpenTerminal(context.Context, hypervisor.MachineRef) (io.ReadWriteCloser, error) {
	return nil, io.EOF
}

// The message of a kept machine names the tools of its hypervisor, and the operator's console if the operator can open it.
func TestMessageOfKeptMachine(t *testing.T) {
	t.Parallel()

	const viaOperator = ", or, while it runs: hyperfleet console -n ci linux-1. To delete it"

	for name, tc := range map[string]struct {
		cluster  string
		provider hypervisor.Provider
		want     string
	}{
		"Proxmox VE and libvirt":     {v1alpha1.ProviderLibvirt, terminalProvider{}, "until 2026-01-01T12:00:00Z: open linux-1 105 on host-1" + viaOperator},
		"KubeVirt":                   {v1alpha1.ProviderKubeVirt, terminalProvider{}, ": open linux-1 105 on host-1. To delete it"},
		"a provider without console": {v1alpha1.ProviderLibvirt, guidedProvider{}, ": open linux-1 105 on host-1. To delete it"},
		"external": {
			v1alpha1.ProviderExternal, struct{ hypervisor.Provider }{},
			"open the console of VM 105 with the tools of the provider of HypervisorCluster lab. To delete it",
		},
		"external, with a console": {
			v1alpha1.ProviderExternal, struct {
				hypervisor.Provider
				hypervisor.Terminal
			}{}, "the provider of HypervisorCluster lab" + viaOperator,
		},
		"not connected": {v1alpha1.ProviderProxmox, nil, "open the console of VM 105 with the tools of the hypervisor. To delete it"},
	} {
		s := &scope{
			Reconciler: &Reconciler{}, provider: tc.provider,
			cluster: &v1alpha1.HypervisorCluster{ObjectMeta: metav1.ObjectMeta{Name: "lab"}, Spec: v1alpha1.HypervisorClusterSpec{Provider: tc.cluster}},
			claim: &v1alpha1.MachineClaim{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ci", Name: "linux-1"},
				Status: v1alpha1.MachineClaimStatus{
					VMRef: &v1alpha1.VMReference{VMID: "105", Node: "host-1"}, EndReason: "BootstrapTimeout",
					KeptUntil: &metav1.Time{Time: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)},
				},
			},
		}

		if got := s.consoleMessage(); !strings.Contains(got, tc.want) || !strings.HasSuffix(got, "kubectl delete machineclaim -n ci linux-1") {
			t.Errorf("%s: message %q, want %q", name, got, tc.want)
		}
	}
}

// A machine is created only if both its template and its cluster are ready.
func TestTemplateAndClusterMustBeReady(t *testing.T) {
	t.Parallel()

	ready := func(is bool) []metav1.Condition {
		status := metav1.ConditionFalse
		if is {
			status = metav1.ConditionTrue
		}

		return []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: status, Reason: "x", Message: "why"}}
	}

	for _, tc := range []struct {
		template, cluster bool
		want              string
	}{
		{true, true, "Done"}, {false, true, "TemplateNotReady"}, {true, false, "ClusterNotReady"}, {false, false, "TemplateNotReady"},
	} {
		template, cluster := &v1alpha1.HypervisorMachineTemplate{}, &v1alpha1.HypervisorCluster{}
		template.Status.Conditions, cluster.Status.Conditions = ready(tc.template), ready(tc.cluster)

		if got := checkReady(template, cluster); got.Reason() != tc.want || got.IsDone() != (tc.want == "Done") {
			t.Errorf("template ready %v, cluster ready %v: %s, want %s", tc.template, tc.cluster, got, tc.want)
		}
	}

	if got := checkReady(&v1alpha1.HypervisorMachineTemplate{}, &v1alpha1.HypervisorCluster{}); got.IsDone() {
		t.Error("a template without conditions counts as ready")
	}
}

// A claim uses the template that it names and the cluster of this template. The host name has the namespace in front if
// the operator is configured so.
func TestObjectsAndNamesOfAClaim(t *testing.T) {
	t.Parallel()

	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}

	newTemplate := func(name, cluster string) *v1alpha1.HypervisorMachineTemplate {
		out := &v1alpha1.HypervisorMachineTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "ci", Name: name}}
		out.Spec.HypervisorClusterRef.Name = cluster

		return out
	}
	newCluster := func(name string) *v1alpha1.HypervisorCluster {
		return &v1alpha1.HypervisorCluster{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.HypervisorClusterSpec{
			Provider: v1alpha1.ProviderProxmox, DNS: &v1alpha1.HypervisorDNS{Domain: name + ".example"},
		}}
	}
	clusters := &connect.Clusters{Secrets: &connect.Secrets{}, Factories: map[string]hypervisor.Factory{
		v1alpha1.ProviderProxmox: func(hypervisor.Config, hypervisor.Options) (hypervisor.Connection, error) {
			return connectProvider(t, pvetest.New(t, pve.DefaultModel())), nil
		},
	}}
	reader := fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		newTemplate("a", "a"), newTemplate("small", "lab"), newCluster("a"), newCluster("lab"),
	).Build()

	for _, name := range []string{"a", "lab"} {
		if _, err := clusters.Ensure(t.Context(), newCluster(name)); err != nil {
			t.Fatal(err)
		}
	}

	for hasNamespace, want := range map[bool]string{false: "a-1.lab.example", true: "ci-a-1.lab.example"} {
		s := &scope{
			Reconciler: &Reconciler{Client: reader, Clusters: clusters, Settings: vmspec.Settings{NamespaceInHostname: hasNamespace}},
			claim:      &v1alpha1.MachineClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ci", Name: "a-1"}},
		}
		s.claim.Spec.TemplateRef.Name = "small"

		if result := s.load(t.Context()); !result.IsDone() {
			t.Fatal(result)
		}

		if s.template.Name != "small" || s.cluster.Name != "lab" || s.names.FQDN != want {
			t.Errorf("template %s, cluster %s, FQDN %s, want %s", s.template.Name, s.cluster.Name, s.names.FQDN, want)
		}
	}
}

func TestSpecOfStandbyAndPlacement(t *testing.T) {
	t.Parallel()

	claim := &v1alpha1.MachineClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ci", Name: "a", UID: "u"}}
	s := &scope{claim: claim, template: &v1alpha1.HypervisorMachineTemplate{}}

	got := s.newMachineSpec()
	if got.Standby || got.Strategy != "" {
		t.Errorf("the default is a started machine with strategy spread: %+v", got)
	}

	claim.Spec.Standby, claim.Spec.Placement = true, v1alpha1.PlacementPack

	got = s.newMachineSpec()
	if !got.Standby || got.Strategy != hypervisor.Pack {
		t.Errorf("on standby and packed: %+v", got)
	}
}

// TestReportsChangeOnlyTheBoundJob checks that the report of a machine changes the RunnerJob that the machine is bound to,
// and not that of another owner whose job has the same ID.
func TestReportsChangeOnlyTheBoundJob(t *testing.T) {
	t.Parallel()

	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}

	newJob := func(name, repository string) *v1alpha1.RunnerJob {
		return &v1alpha1.RunnerJob{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
			Spec:       v1alpha1.RunnerJobSpec{Platform: v1alpha1.WorkloadGitLabCI, ID: "5", Repository: repository, State: v1alpha1.JobQueued},
		}
	}
	objects := fake.NewClientBuilder().WithScheme(scheme).WithObjects(newJob("job-5", "acme/app"), newJob("job-5-0a1b2c3d", "attacker/app")).Build()
	claim := newClaim("a")
	claim.Status.BootstrapInfo = &v1alpha1.BootstrapInfo{BoundJob: "job-5-0a1b2c3d", GuestPhase: string(guest.PhaseRunning), RunnerName: "r"}

	s := &scope{Reconciler: &Reconciler{Client: objects, Live: objects, Clock: clocktesting.NewFakePassiveClock(time.Unix(1e9, 0))}, claim: claim}
	if got := syncJob(t.Context(), s); !got.IsDone() {
		t.Fatalf("result %v", got)
	}

	for name, want := range map[string]v1alpha1.JobState{"job-5": v1alpha1.JobQueued, "job-5-0a1b2c3d": v1alpha1.JobRunning} {
		var job v1alpha1.RunnerJob
		if err := objects.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: name}, &job); err != nil {
			t.Fatal(err)
		}

		if job.Spec.State != want {
			t.Errorf("%s of %s is %s, want %s", name, job.Spec.Repository, job.Spec.State, want)
		}
	}
}

// A pool may replace a machine that had no capacity, so it must see at once that the machine is started after all.
func TestCreationAfterNoCapacityIsWrittenAtOnce(t *testing.T) {
	t.Parallel()

	for reason, want := range map[string]time.Duration{
		"NoCapacity": 0, "NoRoom": 0, "NodeExcluded": 0, "DeviceInUse": 0,
		"Creating": step.ProgressWriteDelay, "Standby": step.ProgressWriteDelay,
	} {
		claim := &v1alpha1.MachineClaim{}
		claim.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionProvisioned, Status: metav1.ConditionFalse, Reason: reason}}

		if got := (&scope{claim: claim}).creationWriteDelay(); got != want {
			t.Errorf("after %s: got %s, want %s", reason, got, want)
		}
	}
}
