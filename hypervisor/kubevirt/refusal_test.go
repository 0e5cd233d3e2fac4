// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt_test

import (
	"errors"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	virtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
	simkubevirt "github.com/hyperfleet/hyperfleet/sim/kubevirt"
)

// If the quota of the namespace is exhausted, or its usage is not computed yet, the error is of kind NoCapacity, so the
// operator waits.
func TestQuotaIsNoCapacity(t *testing.T) {
	t.Parallel()

	for want, isComputed := range map[string]bool{"exceeded quota: none": true, "status unknown for quota: none": false} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			requireQuotaError(t, isComputed, want)
		})
	}
}

// requireQuotaError creates a machine in a namespace whose quota allows none.
func requireQuotaError(t *testing.T, isComputed bool, want string) {
	t.Helper()

	s := newSite(t, simkubevirt.Delays{})
	amounts := corev1.ResourceList{"count/virtualmachines.kubevirt.io": resource.MustParse("0")}
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "none"}, Spec: corev1.ResourceQuotaSpec{Hard: amounts},
	}

	if err := env.Client.Create(t.Context(), quota); err != nil {
		t.Fatal(err)
	}

	// The quota controller does not run in this test, so the test writes the status.
	quota.Status.Hard = amounts
	if isComputed {
		quota.Status.Used = amounts
	}

	if err := env.Client.Status().Update(t.Context(), quota); err != nil {
		t.Fatal(err)
	}

	s.eventually("the quota is enforced", func() bool { return apierrors.IsForbidden(s.dryRunCreate()) })

	_, err := s.createMachine(t)
	if !hypervisor.Is(err, hypervisor.NoCapacity) || !strings.Contains(err.Error(), want) {
		t.Errorf("got %s: %v", hypervisor.KindOf(err), err)
	}
}

// If an admission policy denies the machine, the error is of kind Rejected and contains the message of the
// policy.
func TestAdmissionIsRejected(t *testing.T) {
	t.Parallel()

	s := newSite(t, simkubevirt.Delays{})
	name := s.namespace
	all := admissionv1.OperationAll
	fail := admissionv1.Fail

	policy := &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			FailurePolicy: &fail,
			MatchConstraints: &admissionv1.MatchResources{
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: name}},
				ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
					Operations: []admissionv1.OperationType{all},
					Rule: admissionv1.Rule{
						APIGroups: []string{"kubevirt.io"}, APIVersions: []string{"*"}, Resources: []string{"virtualmachines"},
					},
				}}},
			},
			Validations: []admissionv1.Validation{{Expression: "false", Message: "machines need a cost centre"}},
		},
	}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
		},
	}

	for _, obj := range []client.Object{policy, binding} {
		if err := env.Client.Create(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
	}

	s.eventually("the policy is enforced", func() bool { return s.dryRunCreate() != nil })

	_, err := s.createMachine(t)
	if !hypervisor.Is(err, hypervisor.Rejected) || !strings.Contains(err.Error(), "machines need a cost centre") {
		t.Errorf("got %s: %v", hypervisor.KindOf(err), err)
	}
}

// dryRunCreate creates a machine as a dry run.
func (s *site) dryRunCreate() error {
	return env.Client.Create(s.t.Context(), newForeignVM(s.namespace, "probe"), client.DryRunAll)
}

// createMachine reserves an id and starts the machine.
func (s *site) createMachine(t *testing.T) (hypervisor.Machine, error) {
	t.Helper()

	p, spec := s.newProvider(s.config(), env.Config), newMachineSpec()

	reserved, err := p.Reserve(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}

	spec.ID = reserved.ID

	return p.Start(t.Context(), spec, newSeed)
}

// Consoles and commands are refused with the command of KubeVirt's own client.
func TestShellsAreReferred(t *testing.T) {
	t.Parallel()

	s := newSite(t, simkubevirt.Delays{})
	p := s.newProvider(s.config(), env.Config)
	spec := s.advanceTo(p, newMachineSpec(), hypervisor.StateRunning)
	ref := hypervisor.MachineRef{ID: spec.ID, Owner: spec.Owner}

	for _, test := range []struct {
		kind     hypervisor.Kind
		ref      hypervisor.MachineRef
		consoled string
		ran      string
	}{
		{hypervisor.Rejected, ref, "virtctl console claim-1-", "virtctl ssh USER@vmi/claim-1-"},
		{hypervisor.NotFound, hypervisor.MachineRef{ID: ref.ID, Owner: hypervisor.Owner{Namespace: "ci", Name: "none"}}, "", ""},
	} {
		_, err := p.OpenTerminal(t.Context(), test.ref)
		if !hypervisor.Is(err, test.kind) || !strings.Contains(err.Error(), test.consoled) {
			t.Errorf("console: %v", err)
		}

		_, err = p.Execute(t.Context(), test.ref, []string{"true"})
		if !hypervisor.Is(err, test.kind) || !strings.Contains(err.Error(), test.ran) {
			t.Errorf("command: %v", err)
		}
	}
}

// A machine waits until the machine of an earlier claim of the same name is deleted, because both would have the same
// hostname and address. A claim of the same name in another namespace does not wait.
func TestNamesake(t *testing.T) {
	t.Parallel()

	s := newSite(t, simkubevirt.Delays{})
	p := s.newProvider(s.config(), env.Config)
	spec := s.advanceTo(p, newMachineSpec(), hypervisor.StateRunning)

	later, elsewhere := newMachineSpec(), newMachineSpec()
	later.Owner.UID, elsewhere.Owner.UID, elsewhere.Owner.Namespace = "later", "elsewhere", "another"

	_, err := p.Reserve(t.Context(), later)
	if waiting, ok := errors.AsType[*hypervisor.Error](err); !ok || waiting.Reason != hypervisor.ReasonNamesake {
		t.Errorf("want the reason %s, got %v", hypervisor.ReasonNamesake, err)
	}

	if _, err := p.Reserve(t.Context(), elsewhere); err != nil {
		t.Error(err)
	}

	if err := conformance.Delete(t.Context(), p, hypervisor.MachineRef{ID: spec.ID, Owner: spec.Owner}); err != nil {
		t.Fatal(err)
	}

	s.eventually("the machine does not wait", func() bool {
		_, err := p.Reserve(t.Context(), later)

		return err == nil
	})
}

// The commands for the console of a kept machine name a VirtualMachine that exists, and that people can start again.
func TestConsoleOfKeptMachine(t *testing.T) {
	t.Parallel()

	s := newSite(t, simkubevirt.Delays{})
	p := s.newProvider(s.config(), env.Config)
	spec := s.advanceTo(p, newMachineSpec(), hypervisor.StateRunning)

	m, err := p.Get(t.Context(), hypervisor.MachineRef{ID: spec.ID, Owner: spec.Owner})
	if err != nil {
		t.Fatal(err)
	}

	text := p.DescribeConsole(hypervisor.MachineRef{ID: spec.ID, Owner: spec.Owner}, m.Node)
	for _, command := range []string{"virtctl console ", "virtctl start "} {
		if want := command + m.Name + " --namespace " + s.config().Namespace; !strings.Contains(text, want) {
			t.Errorf("%q lacks %q", text, want)
		}
	}

	var vm virtv1.VirtualMachine
	if err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: s.config().Namespace, Name: m.Name}, &vm); err != nil {
		t.Fatal(err)
	}

	if strategy, err := vm.RunStrategy(); err != nil || strategy != virtv1.RunStrategyManual {
		t.Errorf("the run strategy is %s (%v), with which virtctl start does nothing", strategy, err)
	}
}
