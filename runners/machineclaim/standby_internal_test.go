// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/proxmox"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

var env *kube.Env

func TestMain(m *testing.M) {
	kube.Main(m, &env, kube.WithCRDs("../../deploy/crds"))
}

// standbyFixture is a fixture: a claim on standby whose machine is created, on a hypervisor without other
// machines.
type standbyFixture struct {
	*testing.T

	pve   *pve.Server
	clock *clocktesting.FakePassiveClock
	scope *scope
}

func connectProvider(t *testing.T, s *pve.Server) hypervisor.Connection {
	t.Helper()

	tls, err := hypervisor.NewTLSConfig(&v1alpha1.HypervisorTLS{Fingerprint: s.Fingerprint()}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}

	out, err := proxmox.New(hypervisor.Config{
		Name: "lab", Endpoint: s.URL() + "/api2/json", TLS: tls, ResourcePool: pve.DefaultPool,
		Credentials: hypervisor.Credentials{TokenID: pve.DefaultTokenID, TokenSecret: pve.DefaultSecret},
	}, hypervisor.Options{OperatorUID: "op", TaskInterval: time.Millisecond, ListInterval: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(out.Close)

	return out
}

func newStandbyFixture(t *testing.T, lifecycle *v1alpha1.Lifecycle, changes ...func(*scope)) *standbyFixture {
	t.Helper()

	model := pve.DefaultModel()
	model.StatusLag = 0

	h := &standbyFixture{T: t, pve: pvetest.New(t, model), clock: clocktesting.NewFakePassiveClock(time.Now())}
	claim := &v1alpha1.MachineClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: env.Namespace(t), Name: "held", Finalizers: []string{v1alpha1.FinalizerVMCleanup},
		},
		Spec: v1alpha1.MachineClaimSpec{
			TemplateRef: v1alpha1.LocalObjectReference{Name: "template"}, Standby: true, Lifecycle: lifecycle,
			WorkloadConfig: v1alpha1.Workload{
				Type: v1alpha1.WorkloadGitHubActions, Config: &v1alpha1.WorkloadConfig{GitHub: &v1alpha1.GitHubActionsConfig{}},
			},
		},
	}

	if err := env.Client.Create(t.Context(), claim); err != nil {
		t.Fatal(err)
	}

	h.scope = &scope{
		Reconciler: &Reconciler{
			Client: env.Client, Clock: h.clock,
			StepReconciler: &step.Reconciler{
				Client: env.Client, Controller: "machineclaim", Clock: h.clock, Recorder: events.NewFakeRecorder(100),
			},
		},
		claim: claim, provider: connectProvider(t, h.pve), cluster: &v1alpha1.HypervisorCluster{},
		names: vmspec.Names{Hostname: "held"},
		template: &v1alpha1.HypervisorMachineTemplate{Spec: v1alpha1.HypervisorMachineTemplateSpec{
			Template:  v1alpha1.TemplateSource{Proxmox: &v1alpha1.ProxmoxTemplate{TemplateName: pve.DefaultTemplate}},
			Resources: v1alpha1.MachineResources{CPU: 1, Memory: resource.MustParse("1Gi")},
		}},
	}
	h.scope.cluster.Name = "lab"

	for _, change := range changes {
		change(h.scope)
	}

	h.reconcileUntil("Standby")

	return h
}

// reconcileUntil reconciles until the condition of the claim has the status and the reason.
func (h *standbyFixture) reconcileUntil(reason string) {
	h.Helper()

	const patience = time.Minute

	list := []step.Step[*scope]{
		{Condition: v1alpha1.ConditionPlaced, Run: place}, {Condition: v1alpha1.ConditionProvisioned, Run: provision},
	}

	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if _, err := step.ReconcileSteps(h.Context(), h.scope.StepReconciler, h.scope.claim, list, h.scope); err != nil {
			h.Fatal(err)
		}

		made := meta.FindStatusCondition(h.scope.claim.Status.Conditions, v1alpha1.ConditionProvisioned)
		if made != nil && made.Status == metav1.ConditionFalse && made.Reason == reason {
			return
		}

		if time.Now().After(deadline) {
			h.Fatalf("condition = %+v, want the reason %s", made, reason)
		}
	}
}

// requireEnded checks that the machine has ended with the reason and that the claim is being deleted.
func (h *standbyFixture) requireEnded(reason string) {
	h.Helper()

	var claim v1alpha1.MachineClaim
	if err := env.Client.Get(h.Context(), client.ObjectKeyFromObject(h.scope.claim), &claim); err != nil {
		h.Fatal(err)
	}

	if claim.DeletionTimestamp.IsZero() || claim.Status.EndReason != reason || claim.Status.Times.Ended == nil {
		h.Errorf("want the end reason %s, got %+v", reason, claim.Status)
	}
}

func TestStandbyIsChecked(t *testing.T) {
	t.Parallel()

	h := newStandbyFixture(t, nil)
	status := h.scope.claim.Status

	if status.Phase != v1alpha1.MachineClaimProvisioning || status.Times.Cloned == nil || status.Times.Started != nil ||
		status.Times.Activated != nil || status.BootstrapInfo.RunnerID != "" {
		t.Errorf("status = %+v, times %+v", status, status.Times)
	}

	var mine []pve.VMState

	for _, vm := range h.pve.Snapshot().VMs {
		if strings.Contains(vm.Config["description"], string(h.scope.claim.UID)) {
			mine = append(mine, vm)
		}
	}

	if len(mine) != 1 || mine[0].Status != "stopped" || mine[0].Starts != 0 || len(h.pve.Snapshot().ISOs()) != 0 {
		t.Errorf("machines %+v, want one that was never started and no cloud-init ISO", mine)
	}

	// If the VM is deleted by someone else, the machine has ended.
	other := connectProvider(t, h.pve)
	deadline := time.Now().Add(30 * time.Second)

	for !hypervisor.Is(other.Delete(t.Context(), h.scope.machineRef()), hypervisor.NotFound) {
		if time.Now().After(deadline) {
			t.Fatal("the machine was not removed")
		}

		time.Sleep(time.Millisecond)
	}

	h.reconcileUntil(ReasonVMNotFound)
	h.requireEnded(ReasonVMNotFound)
}

func TestStandbyHasOnlyLifetimeLimit(t *testing.T) {
	t.Parallel()

	short := &metav1.Duration{Duration: time.Minute}
	h := newStandbyFixture(t, &v1alpha1.Lifecycle{
		MaxLifetime: &metav1.Duration{Duration: time.Hour}, IdleTimeout: short, BootstrapTimeout: short, JobTimeout: short,
	})

	h.clock.SetTime(h.clock.Now().Add(50 * time.Minute))
	h.reconcileUntil("Standby")

	if h.scope.claim.Status.EndReason != "" {
		t.Errorf("end reason %s", h.scope.claim.Status.EndReason)
	}

	h.clock.SetTime(h.clock.Now().Add(11 * time.Minute))
	h.reconcileUntil(ReasonMaxLifetime)
	h.requireEnded(ReasonMaxLifetime)
}

func TestActivationIsNoted(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		standby    bool
		generation int64
		want       bool
	}{
		"on standby":                       {true, 1, false},
		"never was":                        {false, 1, false},
		"was, and its spec has changed":    {false, 2, true},
		"on standby, whatever has changed": {true, 2, false},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			s := &scope{
				Reconciler: &Reconciler{Clock: clocktesting.NewFakePassiveClock(time.Now())},
				claim:      &v1alpha1.MachineClaim{Spec: v1alpha1.MachineClaimSpec{Standby: test.standby}},
			}
			s.claim.Generation = test.generation
			placed := metav1.NewMicroTime(time.Unix(1, 0))
			s.times().Placed = &placed
			s.recordActivation()

			if (s.times().Activated != nil) != test.want {
				t.Errorf("activated = %v", s.times().Activated)
			}

			if test.want != !slices.Contains([]*metav1.MicroTime{&placed}, s.requestedAt()) {
				t.Errorf("requested at %v", s.requestedAt())
			}
		})
	}
}
