// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package networking_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/networking/alloc"
	"github.com/hyperfleet/hyperfleet/networking/kubevirt"
	"github.com/hyperfleet/hyperfleet/networking/machine"
	"github.com/hyperfleet/hyperfleet/networking/pools"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

// machineFixture is a fixture with a pool of two addresses, in which the test calls Reconcile of the machine
// controller. The test acts as KubeVirt.
type machineFixture struct {
	*fixture

	network    string
	addresses  *pools.AddressRegistry
	controller *machine.Reconciler
	recorder   *events.FakeRecorder
	// lostResponse names a kind of write whose response is lost after the write: status or create. With
	// addresses, a machine is read as it was before its addresses were recorded.
	lostResponse string
	// logLines are the lines that the machine controller has logged.
	logLines []string
	// addressesAtCreate are the recorded addresses of the machine when its VirtualMachine was created.
	addressesAtCreate []string
	// machineLists is how often the machine controller has listed machines.
	machineLists int
}

func newMachineFixture(t *testing.T) *machineFixture {
	t.Helper()
	t.Parallel()

	w := &machineFixture{fixture: &fixture{t: t, namespace: env.Namespace(t)}, recorder: events.NewFakeRecorder(100)}
	w.network = w.namespace + "/machines"
	w.startReconcilers()

	return w
}

// startReconcilers creates the reconcilers of a new process.
func (w *machineFixture) startReconcilers() {
	w.t.Helper()

	plain, err := client.NewWithWatch(env.Config, client.Options{Scheme: env.Scheme})
	w.must(err)

	answer := func(kind string, err error) error {
		if err == nil && w.lostResponse == kind {
			return errLost
		}

		return err
	}
	countLists := func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		if _, machines := list.(*v1alpha1.KubevirtMachineList); machines {
			w.machineLists++
		}

		return c.List(ctx, list, opts...)
	}
	c := interceptor.NewClient(plain, interceptor.Funcs{
		List: countLists,
		// After a lost response, the cache does not have the write yet.
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			if w.lostResponse == "create" && obj.GetObjectKind().GroupVersionKind() == kubevirt.VirtualMachineKind() {
				return apierrors.NewNotFound(schema.GroupResource{Resource: "virtualmachines"}, key.Name)
			}

			err := c.Get(ctx, key, obj, opts...)
			if m, ok := obj.(*v1alpha1.KubevirtMachine); ok && w.lostResponse == "addresses" {
				m.Status.AllocatedBootstrapAddresses = nil
			}

			return err
		},
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			if obj.GetObjectKind().GroupVersionKind() == kubevirt.VirtualMachineKind() {
				w.addressesAtCreate = w.getMachine(obj.GetName()).Status.AllocatedBootstrapAddresses["eno101"]
			}

			return answer("create", c.Create(ctx, obj, opts...))
		},
		SubResourcePatch: func(
			ctx context.Context, c client.Client, sub string, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption,
		) error {
			return answer("status", c.SubResource(sub).Patch(ctx, obj, patch, opts...))
		},
	})

	pool, err := alloc.NewPool(w.namespace+"/workers", alloc.Spec{
		Addresses: []string{"10.0.0.10-10.0.0.11"}, Gateways: []string{"10.0.0.1"}, PrefixLengthV4: 24,
	})
	w.must(err)

	w.addresses = pools.New()
	w.addresses.AddPoolReaders(func(context.Context) ([]pools.PoolObject, error) { return nil, nil })
	w.addresses.AddReaders(machine.NewReader(plain))

	w.must(w.addresses.Rebuild(w.t.Context()))

	w.must(w.addresses.SetPool(pools.Pool{Network: w.network, Addresses: pool}, nil))

	w.controller = &machine.Reconciler{
		Client: c, APIReader: interceptor.NewClient(plain, interceptor.Funcs{List: countLists}),
		Runner:   &step.Reconciler{Client: c, Controller: "kubevirtmachine", Recorder: w.recorder},
		Recorder: w.recorder, Addresses: w.addresses, Clock: clock.RealClock{},
	}
}

// createMachine creates a machine of the pool.
func (w *machineFixture) createMachine(name string) {
	w.t.Helper()
	w.must(env.Client.Create(w.t.Context(), newMachine(w.namespace, "workers", name)))
}

// reconcileMachine reconciles a machine several times, as its events would.
func (w *machineFixture) reconcileMachine(name string) reconcile.Result {
	w.t.Helper()

	var last reconcile.Result

	ctx := log.IntoContext(w.t.Context(), funcr.New(func(_, line string) { w.logLines = append(w.logLines, line) }, funcr.Options{}))

	for range 3 {
		result, err := w.controller.Reconcile(ctx, reconcile.Request{NamespacedName: w.objectKey(name)})
		if err != nil && !errors.Is(err, errLost) {
			w.t.Fatal(err)
		}

		last = result
	}

	return last
}

func (w *machineFixture) objectKey(name string) client.ObjectKey {
	return client.ObjectKey{Namespace: w.namespace, Name: name}
}

// getMachine returns a machine. Its name is empty if it does not exist.
func (w *machineFixture) getMachine(name string) *v1alpha1.KubevirtMachine {
	w.t.Helper()

	out := &v1alpha1.KubevirtMachine{}
	w.must(client.IgnoreNotFound(env.Client.Get(w.t.Context(), w.objectKey(name), out)))

	return out
}

// getVirtualMachine returns a machine's VirtualMachine. Its name is empty if it does not exist.
func (w *machineFixture) getVirtualMachine(name string) *unstructured.Unstructured {
	w.t.Helper()

	out := kubevirt.NewObject(kubevirt.VirtualMachineKind())
	w.must(client.IgnoreNotFound(env.Client.Get(w.t.Context(), w.objectKey(name), out)))

	return out
}

// requireCondition checks a machine's condition, its addresses and its phase.
func (w *machineFixture) requireCondition(name, condition, reason string, phase v1alpha1.KubevirtMachinePhase, addresses ...string) {
	w.t.Helper()

	m := w.getMachine(name)

	actual := meta.FindStatusCondition(m.Status.Conditions, condition)
	if actual == nil || actual.Reason != reason {
		w.t.Errorf("%s has %s %+v, want %s", name, condition, actual, reason)
	}

	if got := m.Status.AllocatedBootstrapAddresses["eno101"]; !slices.Equal(got, addresses) || m.Status.Phase != phase {
		w.t.Errorf("%s is %s with %v, want %s with %v", name, m.Status.Phase, got, phase, addresses)
	}
}

// setFinalizers keeps a VirtualMachine, as KubeVirt does until its instance is deleted.
func (w *machineFixture) setFinalizers(name string, is ...string) {
	w.t.Helper()

	vm := w.getVirtualMachine(name)
	vm.SetFinalizers(is)
	w.must(env.Client.Update(w.t.Context(), vm))
}

// A machine's addresses are recorded before its VirtualMachine is created. No other machine gets them until
// the API server has neither the VirtualMachine nor its instance. The controller finds free addresses without a list
// of all machines.
func TestMachineLifecycle(t *testing.T) {
	w := newMachineFixture(t)
	w.createMachine("a")
	w.createMachine("b")
	w.createMachine("c")
	w.reconcileMachine("a")
	w.reconcileMachine("b")
	w.reconcileMachine("c")

	if !slices.Equal(w.addressesAtCreate, []string{"10.0.0.11/24"}) {
		t.Errorf("%v was recorded when b's VirtualMachine was created", w.addressesAtCreate)
	}

	w.requireCondition("c", v1alpha1.ConditionAddressesAllocated, alloc.ReasonExhausted, v1alpha1.KubevirtMachinePending)

	if lines := strings.Join(w.logLines, "\n"); !strings.Contains(lines, "No available IPs in pool for interface eno101") {
		t.Errorf("the log does not say that the pool is exhausted:\n%s", lines)
	}

	var reported []string
	for len(w.recorder.Events) > 0 {
		reported = append(reported, <-w.recorder.Events)
	}

	if text := strings.Join(reported, "\n"); !strings.Contains(text, "Warning "+alloc.ReasonExhausted) {
		t.Errorf("no event says that the pool is exhausted:\n%s", text)
	}

	vm := w.getVirtualMachine("a")
	w.must(unstructured.SetNestedField(vm.Object, true, "status", "ready"))
	w.must(env.Client.Status().Update(t.Context(), vm))
	w.reconcileMachine("a")
	w.requireCondition("a", v1alpha1.ConditionVMReady, "Running", v1alpha1.KubevirtMachineRunning, "10.0.0.10/24")

	w.setFinalizers("a", "example.com/kubevirt")
	w.must(env.Client.Delete(t.Context(), w.getMachine("a")))
	w.reconcileMachine("a")
	w.reconcileMachine("c")
	w.requireCondition("a", v1alpha1.ConditionVMDeleted, "VMDeleting", v1alpha1.KubevirtMachineDeleting, "10.0.0.10/24")
	w.requireCondition("c", v1alpha1.ConditionAddressesAllocated, alloc.ReasonExhausted, v1alpha1.KubevirtMachinePending)

	instance := kubevirt.NewObject(kubevirt.InstanceKind())
	instance.SetNamespace(w.namespace)
	instance.SetName("a")
	instance.SetLabels(map[string]string{v1alpha1.LabelMachine: "a"})
	w.must(unstructured.SetNestedMap(instance.Object, map[string]any{"domain": map[string]any{"devices": map[string]any{}}}, "spec"))
	w.must(env.Client.Create(t.Context(), instance))
	w.setFinalizers("a")
	w.reconcileMachine("a")
	w.reconcileMachine("c")
	w.requireCondition("a", v1alpha1.ConditionVMDeleted, "VMDeleting", v1alpha1.KubevirtMachineDeleting, "10.0.0.10/24")

	w.must(env.Client.Delete(t.Context(), instance))
	w.reconcileMachine("a")

	if left := w.getMachine("a"); left.Name != "" {
		t.Errorf("a still exists: %+v", left.Status.Conditions)
	}

	w.reconcileMachine("c")
	w.requireCondition("c", v1alpha1.ConditionVMReady, "Provisioning", v1alpha1.KubevirtMachineProvisioning, "10.0.0.10/24")

	if w.machineLists > 0 {
		t.Errorf("the controller has listed machines %d times", w.machineLists)
	}
}

// A machine without a network configuration runs with DHCP: it has no address, and no network data.
func TestMachineUsesDHCP(t *testing.T) {
	w := newMachineFixture(t)
	m := newMachine(w.namespace, "workers", "a")
	m.Spec.BootstrapNetworkConfig = nil
	w.must(env.Client.Create(t.Context(), m))
	w.reconcileMachine("a")

	w.requireCondition("a", v1alpha1.ConditionAddressesAllocated, "DHCP", v1alpha1.KubevirtMachineProvisioning)

	if vm := w.getVirtualMachine("a"); vm.GetName() == "" || kubevirt.NetworkDataSecret(vm) != "" {
		t.Errorf("VirtualMachine %q has the network data %q", vm.GetName(), kubevirt.NetworkDataSecret(vm))
	}
}

// If the Kubernetes node of a machine is drained, and KubeVirt leaves it to others to move the machine, the condition
// names the node and what to do.
func TestEvictionIsPending(t *testing.T) {
	w := newMachineFixture(t)
	w.createMachine("a")
	w.reconcileMachine("a")

	vm := w.getVirtualMachine("a")
	w.must(unstructured.SetNestedField(vm.Object, true, "status", "ready"))
	w.must(env.Client.Status().Update(t.Context(), vm))

	instance := kubevirt.NewObject(kubevirt.InstanceKind())
	instance.SetNamespace(w.namespace)
	instance.SetName("a")
	instance.SetLabels(map[string]string{v1alpha1.LabelMachine: "a"})
	instance.Object["spec"] = map[string]any{
		"domain": map[string]any{"devices": map[string]any{}}, "evictionStrategy": "External",
	}
	w.must(env.Client.Create(t.Context(), instance))
	w.reconcileMachine("a")
	w.requireCondition("a", v1alpha1.ConditionVMReady, "Running", v1alpha1.KubevirtMachineRunning, "10.0.0.10/24")

	instance.Object["status"] = map[string]any{"nodeName": "node-1", "evacuationNodeName": "node-1"}
	w.must(env.Client.Update(t.Context(), instance))
	w.reconcileMachine("a")
	w.requireCondition("a", v1alpha1.ConditionVMReady, "EvictionPending", v1alpha1.KubevirtMachineRunning, "10.0.0.10/24")

	ready := meta.FindStatusCondition(w.getMachine("a").Status.Conditions, v1alpha1.ConditionVMReady)
	if ready.Status != metav1.ConditionTrue || !strings.Contains(ready.Message, "node node-1 is being drained") {
		t.Errorf("condition %+v", ready)
	}
}

// If responses to writes are lost, the operator finds the results: it creates no second VirtualMachine and
// allocates no second address, in this process and in the next one.
func TestLostResponsesOfMachineWrites(t *testing.T) {
	t.Parallel()

	for _, lost := range []string{"status", "create"} {
		t.Run(lost, func(t *testing.T) {
			w := newMachineFixture(t)
			w.createMachine("a")
			w.createMachine("b")

			w.lostResponse = lost
			w.reconcileMachine("a")

			if lost == "create" && !meta.IsStatusConditionTrue(w.getMachine("a").Status.Conditions, v1alpha1.ConditionVMCreated) {
				t.Error("the created VirtualMachine was not found")
			}

			w.lostResponse = ""
			w.reconcileMachine("a")
			w.reconcileMachine("b")

			w.startReconcilers()
			w.reconcileMachine("b")
			w.reconcileMachine("a")
			w.requireCondition("a", v1alpha1.ConditionVMReady, "Provisioning", v1alpha1.KubevirtMachineProvisioning, "10.0.0.10/24")
			w.requireCondition("b", v1alpha1.ConditionVMReady, "Provisioning", v1alpha1.KubevirtMachineProvisioning, "10.0.0.11/24")

			a := w.getMachine("a")
			if !metav1.IsControlledBy(w.getVirtualMachine("a"), a) {
				t.Errorf("a's VirtualMachine: %v", w.getVirtualMachine("a").Object)
			}
		})
	}
}

// The operator does not touch a VirtualMachine of another owner with a machine's name, neither while the
// machine exists nor when it is deleted.
func TestVirtualMachineOfOtherOwner(t *testing.T) {
	w := newMachineFixture(t)

	theirs := kubevirt.NewObject(kubevirt.VirtualMachineKind())
	theirs.SetNamespace(w.namespace)
	theirs.SetName("a")
	w.must(unstructured.SetNestedField(theirs.Object, "Halted", "spec", "runStrategy"))
	w.must(unstructured.SetNestedMap(theirs.Object, map[string]any{
		"spec": map[string]any{"domain": map[string]any{"devices": map[string]any{}}},
	}, "spec", "template"))
	w.must(env.Client.Create(t.Context(), theirs))

	w.createMachine("a")
	w.reconcileMachine("a")
	w.requireCondition("a", v1alpha1.ConditionVMCreated, "VMNotOurs", v1alpha1.KubevirtMachineFailed, "10.0.0.10/24")
	w.must(env.Client.Delete(t.Context(), w.getMachine("a")))
	w.reconcileMachine("a")

	if w.getMachine("a").Name != "" || w.getVirtualMachine("a").GetUID() != theirs.GetUID() || w.getVirtualMachine("a").GetDeletionTimestamp() != nil {
		t.Errorf("the machine: %v; the VirtualMachine: %v", w.getMachine("a").Status, w.getVirtualMachine("a").Object)
	}
}

// TestMachineWaitsForQuota checks that a machine whose VirtualMachine a ResourceQuota rejects has not failed, and is
// created when the quota allows it.
func TestMachineWaitsForQuota(t *testing.T) {
	w := newMachineFixture(t)
	amounts := corev1.ResourceList{"count/virtualmachines.kubevirt.io": resource.MustParse("0")}
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "none"}, Spec: corev1.ResourceQuotaSpec{Hard: amounts},
	}
	w.must(env.Client.Create(t.Context(), quota))

	// The quota controller does not run in this test, so the test writes the status.
	quota.Status = corev1.ResourceQuotaStatus{Hard: amounts, Used: amounts}
	w.must(env.Client.Status().Update(t.Context(), quota))
	timing.WaitUntil(t, "the API server enforces the quota", func() bool {
		probe := newMachine(w.namespace, "workers", "probe")
		probe.UID, probe.Spec.BootstrapNetworkConfig = "probe", nil

		vm, err := kubevirt.NewVirtualMachine(probe, "", "")
		w.must(err)

		return apierrors.IsForbidden(env.Client.Create(t.Context(), vm, client.DryRunAll))
	})

	w.createMachine("a")

	if result := w.reconcileMachine("a"); result.RequeueAfter <= 0 || result.RequeueAfter > time.Minute {
		t.Errorf("the machine is reconciled again after %v", result.RequeueAfter)
	}

	w.requireCondition("a", v1alpha1.ConditionVMCreated, "QuotaExceeded", v1alpha1.KubevirtMachineProvisioning, "10.0.0.10/24")
	w.must(env.Client.Delete(t.Context(), quota))
	timing.WaitUntil(t, "the machine has its VirtualMachine", func() bool {
		w.reconcileMachine("a")

		return w.getVirtualMachine("a").GetName() == "a"
	})
}

// If the API server refuses a VirtualMachine, the machine has the phase Failed and the API server's
// message.
func TestRejectedVirtualMachine(t *testing.T) {
	w := newMachineFixture(t)
	w.createMachine("a")

	m := w.getMachine("a")
	m.Spec.VirtualMachineTemplate.Raw = []byte(strings.Replace(string(m.Spec.VirtualMachineTemplate.Raw), `"Always"`, `7`, 1))
	w.must(env.Client.Update(t.Context(), m))
	w.reconcileMachine("a")
	w.requireCondition("a", v1alpha1.ConditionVMCreated, "VMRejected", v1alpha1.KubevirtMachineFailed, "10.0.0.10/24")

	condition := meta.FindStatusCondition(w.getMachine("a").Status.Conditions, v1alpha1.ConditionVMCreated)
	if !strings.Contains(condition.Message, "runStrategy") {
		t.Errorf("message %q", condition.Message)
	}
}

// If one address is recorded for two machines, the newer machine reports it and keeps its addresses.
func TestAddressRecordedForTwoMachines(t *testing.T) {
	w := newMachineFixture(t)
	w.createMachine("a")
	w.createMachine("b")
	w.reconcileMachine("a")

	b := w.getMachine("b")
	b.Status.AllocatedBootstrapAddresses = w.getMachine("a").Status.AllocatedBootstrapAddresses
	b.Status.BootstrapNetwork = w.network
	w.must(env.Client.Status().Update(t.Context(), b))
	w.reconcileMachine("b")
	w.requireCondition("b", v1alpha1.ConditionAddressesAllocated, "AddressConflict", v1alpha1.KubevirtMachineFailed, "10.0.0.10/24")
	w.reconcileMachine("a")
	w.requireCondition("a", v1alpha1.ConditionVMReady, "Provisioning", v1alpha1.KubevirtMachineProvisioning, "10.0.0.10/24")
}

// A machine whose finalizer was removed by force keeps its addresses until its VirtualMachine is deleted.
func TestRemovedFinalizer(t *testing.T) {
	w := newMachineFixture(t)
	w.createMachine("a")
	w.reconcileMachine("a")

	m := w.getMachine("a")
	m.Finalizers = nil
	w.must(env.Client.Update(t.Context(), m))
	w.must(env.Client.Delete(t.Context(), m))

	owners := func() []string { return w.addresses.OwnersWithPrefix(kubevirt.OwnerKeyPrefix(w.namespace, "a")) }

	if result := w.reconcileMachine("a"); result.RequeueAfter <= 0 || result.RequeueAfter > time.Minute || len(owners()) != 1 {
		t.Errorf("requeued after %s, with owners %v", result.RequeueAfter, owners())
	}

	w.must(env.Client.Delete(t.Context(), w.getVirtualMachine("a")))
	w.reconcileMachine("a")

	if left := owners(); len(left) > 0 {
		t.Errorf("addresses in use: %v", left)
	}
}

// Addresses stay recorded until they are released, even if the reconcile began with a copy of the machine
// without them. The next process must find each address at exactly one machine.
func TestAddressesAreFreedAfterStatusWrite(t *testing.T) {
	w := newMachineFixture(t)
	w.createMachine("a")
	w.reconcileMachine("a")

	owners := func() int { return len(w.addresses.OwnersWithPrefix(kubevirt.OwnerKeyPrefix(w.namespace, "a"))) }

	w.lostResponse = "addresses"
	w.must(env.Client.Delete(t.Context(), w.getMachine("a")))
	w.reconcileMachine("a")
	w.reconcileMachine("a")
	w.requireCondition("a", v1alpha1.ConditionAddressesReleased, "StatusStale", v1alpha1.KubevirtMachineDeleting, "10.0.0.10/24")

	if owners() != 1 {
		t.Errorf("%d machines have the recorded address", owners())
	}

	w.lostResponse = ""
	w.reconcileMachine("a")

	if left := w.getMachine("a"); left.Name != "" || owners() != 0 {
		t.Errorf("a still exists: %+v, and %d machines have its address", left.Status.Conditions, owners())
	}
}
