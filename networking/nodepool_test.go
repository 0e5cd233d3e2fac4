// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package networking_test

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/keep"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/networking/kubevirt"
	"github.com/hyperfleet/hyperfleet/networking/nodepool"
	"github.com/hyperfleet/hyperfleet/networking/pools"
)

// poolFixture is a fixture with one pool, in which the test calls Reconcile of the pool controller. Only the
// test acts on the machines.
type poolFixture struct {
	*fixture

	pool       *v1alpha1.KubevirtNodePool
	addresses  *pools.AddressRegistry
	controller *nodepool.Reconciler
	recorder   *events.FakeRecorder
	// If hasStaleCache is true, the cache has no machines yet.
	hasStaleCache bool
	// deleteErr is the error of all deletions.
	deleteErr error
}

// newPoolFixture returns a fixture whose pool has the given numbers of machines and addresses.
func newPoolFixture(t *testing.T, replicas int32, addresses v1alpha1.AddressRange) *poolFixture {
	t.Helper()
	t.Parallel()

	w := &poolFixture{fixture: &fixture{t: t, namespace: env.Namespace(t)}, addresses: pools.New(), recorder: events.NewFakeRecorder(100)}

	plain, err := client.NewWithWatch(env.Config, client.Options{Scheme: env.Scheme})
	w.must(err)
	w.must(w.addresses.Rebuild(t.Context()))

	cached := interceptor.NewClient(plain, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if _, machines := list.(*v1alpha1.KubevirtMachineList); machines && w.hasStaleCache {
				return nil
			}

			return c.List(ctx, list, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			return cmp.Or(w.deleteErr, c.Delete(ctx, obj, opts...))
		},
	})
	w.controller = &nodepool.Reconciler{
		Client: cached, APIReader: plain, Runner: &step.Reconciler{Client: cached, Controller: "kubevirtnodepool"},
		Recorder: w.recorder, Addresses: w.addresses, Clock: clock.RealClock{},
		Keeper: &keep.Keeper{Client: plain, APIReader: plain, Area: "networking", Lists: []client.ObjectList{&v1alpha1.KubevirtNodePoolList{}}},
	}

	w.pool = w.newNodePool("workers", replicas, addresses)
	env.Create(t, w.pool)
	w.reconcilePool()

	return w
}

// reconcilePool reconciles the pool several times, as its events would, and reads it. Its UID is empty if it
// does not exist.
func (w *poolFixture) reconcilePool() {
	w.t.Helper()

	key := client.ObjectKeyFromObject(w.pool)

	for range 4 {
		_, err := w.controller.Reconcile(w.t.Context(), reconcile.Request{NamespacedName: key})
		w.must(err)
	}

	w.pool = &v1alpha1.KubevirtNodePool{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	w.must(client.IgnoreNotFound(env.Client.Get(w.t.Context(), key, w.pool)))
}

// changePool changes the pool and reconciles it.
func (w *poolFixture) changePool(how func(*v1alpha1.KubevirtNodePoolSpec)) {
	w.t.Helper()
	how(&w.pool.Spec)
	w.must(env.Client.Update(w.t.Context(), w.pool))
	w.reconcilePool()
}

// listRemaining returns the machines of the namespace that are not being deleted, and the number of those
// that are.
func (w *poolFixture) listRemaining() (there []v1alpha1.KubevirtMachine, going int) {
	w.t.Helper()

	var all v1alpha1.KubevirtMachineList
	w.must(env.Client.List(w.t.Context(), &all, client.InNamespace(w.pool.Namespace)))

	there = slices.DeleteFunc(slices.Clone(all.Items), func(m v1alpha1.KubevirtMachine) bool { return !m.DeletionTimestamp.IsZero() })

	return there, len(all.Items) - len(there)
}

// removeFinalizers removes the finalizers of the machines that are being deleted, as their own controller
// does.
func (w *poolFixture) removeFinalizers() {
	w.t.Helper()

	var all v1alpha1.KubevirtMachineList
	w.must(env.Client.List(w.t.Context(), &all, client.InNamespace(w.pool.Namespace)))

	for i := range all.Items {
		if m := &all.Items[i]; !m.DeletionTimestamp.IsZero() {
			m.Finalizers = nil
			w.must(env.Client.Update(w.t.Context(), m))
		}
	}
}

func (w *poolFixture) requirePoolCondition(condition, reason string) {
	w.t.Helper()

	if got := meta.FindStatusCondition(w.pool.Status.Conditions, condition); got == nil || got.Reason != reason {
		w.t.Errorf("the pool has %s %+v, want %s", condition, got, reason)
	}
}

func (w *poolFixture) listTemplates() []string {
	w.t.Helper()

	var all v1alpha1.KubevirtMachineTemplateList
	w.must(env.Client.List(w.t.Context(), &all, client.InNamespace(w.pool.Namespace)))

	var names []string
	for i := range all.Items {
		names = append(names, all.Items[i].Name)
	}

	return names
}

// A pool has the desired number of machines even if its cache is stale. The machines with the least
// progress are deleted first, and the pool is deleted after all of them.
func TestPoolLifecycle(t *testing.T) {
	w := newPoolFixture(t, 3, "10.0.1.0-10.0.1.1")

	made, _ := w.listRemaining()
	if len(made) != 3 {
		t.Fatalf("%d machines", len(made))
	}

	for i := range made {
		if m := &made[i]; !metav1.IsControlledBy(m, w.pool) || !slices.Contains(m.Finalizers, v1alpha1.FinalizerKubevirtMachine) ||
			m.Annotations[v1alpha1.AnnotationMachineTemplate] != w.pool.Status.MachineTemplate || m.Labels[v1alpha1.LabelNodePool] != "workers" {
			t.Errorf("a machine's metadata: %+v", m.ObjectMeta)
		}
	}

	w.requirePoolCondition(v1alpha1.ConditionAddressesFewerThanReplicas, "TooFewAddresses")
	w.requirePoolCondition(v1alpha1.ConditionMachinesReady, "MachinesNotReady")

	w.hasStaleCache = true
	w.reconcilePool()

	if there, going := w.listRemaining(); len(there) != 3 || going != 0 {
		t.Errorf("with a stale cache there are %d machines, and %d are being deleted", len(there), going)
	}

	w.hasStaleCache = false

	made[1].Status.Phase, made[1].Status.Ready = v1alpha1.KubevirtMachineRunning, true
	made[2].Status.Phase = v1alpha1.KubevirtMachineProvisioning
	w.must(env.Client.Status().Update(t.Context(), &made[1]))
	w.must(env.Client.Status().Update(t.Context(), &made[2]))
	w.changePool(func(s *v1alpha1.KubevirtNodePoolSpec) { s.Replicas = 1 })

	if there, going := w.listRemaining(); len(there) != 1 || there[0].Name != made[1].Name || going != 2 {
		t.Errorf("left: %d, being deleted: %d", len(there), going)
	}

	w.requirePoolCondition("Ready", "Ready")
	w.removeFinalizers()
	w.must(env.Client.Delete(t.Context(), w.pool))
	w.reconcilePool()
	w.requirePoolCondition(v1alpha1.ConditionMachinesDeleted, "MachinesLeft")

	if there, going := w.listRemaining(); len(there) != 0 || going != 1 {
		t.Errorf("the deleted pool has %d machines, and %d are being deleted", len(there), going)
	}

	w.removeFinalizers()
	w.reconcilePool()

	if _, known := w.addresses.Status(kubevirt.PoolName(w.pool.Namespace, "workers")); w.pool.UID != "" || known {
		t.Errorf("the pool is left: %q; its addresses: %v", w.pool.UID, known)
	}
}

// A changed template is restored, and it is deleted together with the last machine that uses it. Templates
// of other owners do not change.
func TestTemplatesOfAPool(t *testing.T) {
	w := newPoolFixture(t, 1, "10.0.1.0-10.0.1.9")
	first := w.pool.Status.MachineTemplate
	key := client.ObjectKey{Namespace: w.pool.Namespace, Name: first}

	var template v1alpha1.KubevirtMachineTemplate
	w.must(env.Client.Get(t.Context(), key, &template))

	raw := string(template.Spec.Template.Spec.VirtualMachineTemplate.Raw)

	for why, other := range map[string]string{
		"another size": strings.ReplaceAll(raw, "1Gi", "9Gi"), "more than is read": `{"a":[` + strings.Repeat("1,", 50000) + `1]}`,
	} {
		template.Spec.Template.Spec.VirtualMachineTemplate.Raw = []byte(other)
		w.must(env.Client.Update(t.Context(), &template))
		w.reconcilePool()
		w.must(env.Client.Get(t.Context(), key, &template))

		if got := string(template.Spec.Template.Spec.VirtualMachineTemplate.Raw); got != raw {
			t.Errorf("%s: a template that another client changed is now %.200s", why, got)
		}
	}

	w.changePool(func(s *v1alpha1.KubevirtNodePoolSpec) { s.Compute.Memory = resource.MustParse("2Gi") })

	second := w.pool.Status.MachineTemplate
	if got := w.listTemplates(); second == first || len(got) != 2 {
		t.Errorf("templates %v; the machine uses %s, new machines use %s", got, first, second)
	}

	if there, _ := w.listRemaining(); len(there) != 1 || there[0].Annotations[v1alpha1.AnnotationMachineTemplate] != first {
		t.Error("the machine was replaced")
	}

	w.changePool(func(s *v1alpha1.KubevirtNodePoolSpec) { s.Replicas = 0 })
	w.removeFinalizers()
	w.reconcilePool()

	if got := w.listTemplates(); !slices.Equal(got, []string{second}) {
		t.Errorf("templates %v, want %s", got, second)
	}

	w.must(env.Client.Get(t.Context(), client.ObjectKey{Namespace: w.pool.Namespace, Name: second}, &template))
	template.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(
		&metav1.ObjectMeta{Name: w.pool.Name, UID: "theirs"}, schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"})}
	w.must(env.Client.Update(t.Context(), &template))
	w.reconcilePool()
	w.requirePoolCondition(v1alpha1.ConditionTemplateReady, "TemplateNotOurs")

	w.changePool(func(s *v1alpha1.KubevirtNodePoolSpec) { s.Compute.Memory = resource.MustParse("3Gi") })

	if got := w.listTemplates(); !slices.Contains(got, second) || len(got) != 2 {
		t.Errorf("templates %v: the template of another owner must stay", got)
	}
}

// A machine that others have deleted gets no event.
func TestMachineThatOthersDeletedGetsNoEvent(t *testing.T) {
	w := newPoolFixture(t, 2, "10.0.0.10-10.0.0.20")

	w.deleteErr = apierrors.NewNotFound(schema.GroupResource{Resource: "kubevirtmachines"}, "m")
	w.changePool(func(s *v1alpha1.KubevirtNodePoolSpec) { s.Replicas = 1 })
	close(w.recorder.Events)

	for event := range w.recorder.Events {
		if strings.Contains(event, "MachineDeleted") {
			t.Errorf("there is the event %q", event)
		}
	}
}
