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

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/networking/alloc"
	"github.com/hyperfleet/hyperfleet/networking/claims"
	"github.com/hyperfleet/hyperfleet/networking/pools"
	"github.com/hyperfleet/hyperfleet/test/must"
)

var errLost = errors.New("connection reset by peer")

// claimFixture is a fixture in which the test calls Reconcile of the controllers of claims and templates.
type claimFixture struct {
	*fixture

	addresses *pools.AddressRegistry
	recorder  *events.FakeRecorder
	templates *claims.TemplateReconciler
	claims    *claims.ClaimReconciler
	// If losesResponses is true, status writes reach the API server, and their responses are lost.
	losesResponses bool
}

func newClaimFixture(t *testing.T) *claimFixture {
	t.Helper()
	t.Parallel()

	w := &claimFixture{fixture: &fixture{t: t, namespace: env.Namespace(t)}, recorder: events.NewFakeRecorder(100)}
	w.startReconcilers()

	return w
}

// startReconcilers creates the reconcilers of a new process.
func (w *claimFixture) startReconcilers() {
	w.t.Helper()

	plain, err := client.NewWithWatch(env.Config, client.Options{Scheme: env.Scheme})
	w.must(err)

	c := interceptor.NewClient(plain, interceptor.Funcs{SubResourceApply: func(
		ctx context.Context, c client.Client, sub string, obj runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption,
	) error {
		err := c.SubResource(sub).Apply(ctx, obj, opts...)
		if w.losesResponses && err == nil {
			return errLost
		}

		return err
	}})

	w.addresses = pools.New()
	registry := claims.NewRegistry(w.addresses)
	w.addresses.AddPoolReaders(claims.NewPoolReader(plain, registry))
	w.addresses.AddReaders(claims.NewReader(plain, registry))
	w.must(w.addresses.Rebuild(w.t.Context()))

	w.templates = &claims.TemplateReconciler{
		Client: c, APIReader: plain, Addresses: w.addresses, Registry: registry, Clock: clock.RealClock{},
	}
	w.claims = &claims.ClaimReconciler{
		Client: c, APIReader: plain, Addresses: w.addresses, Registry: registry, Recorder: w.recorder, Clock: clock.RealClock{},
	}
}

// createSmallTemplate creates a template with a pool of two addresses, and a cluster for it.
func (w *claimFixture) createSmallTemplate() *v1alpha1.HypervisorMachineTemplate {
	w.t.Helper()

	template := w.createTemplate("small", w.createCluster("c", nil), "", "10.0.0.10-10.0.0.11")
	w.reconcileOnce(w.templates, template)

	return template
}

// createClaim creates a claim of the template "small".
func (w *claimFixture) createClaim(name string) *v1alpha1.MachineClaim {
	w.t.Helper()

	claim := newMachineClaim(w.namespace, name, "small")
	claim.Finalizers = []string{"example.com/test"}
	env.Create(w.t, claim)

	return claim
}

// reconcileOnce reconciles an object once, and then reads it again if it still exists.
func (w *claimFixture) reconcileOnce(r reconcile.Reconciler, obj client.Object) reconcile.Result {
	w.t.Helper()

	result, err := r.Reconcile(w.t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(obj)})
	if err != nil && !errors.Is(err, errLost) {
		w.t.Fatal(err)
	}

	w.refreshObject(obj)

	return result
}

func (w *claimFixture) refreshObject(obj client.Object) {
	w.t.Helper()

	err := env.Client.Get(w.t.Context(), client.ObjectKeyFromObject(obj), obj)
	if client.IgnoreNotFound(err) != nil {
		w.t.Fatal(err)
	}
}

// requireAddresses checks the recorded addresses of a claim and the reason of its condition.
func (w *claimFixture) requireAddresses(claim *v1alpha1.MachineClaim, reason string, addresses ...string) {
	w.t.Helper()
	w.refreshObject(claim)

	var got []string
	if claim.Status.NetworkInfo != nil {
		got = claim.Status.NetworkInfo.Addresses
	}

	gotReason := ""
	if c := meta.FindStatusCondition(claim.Status.Conditions, v1alpha1.ConditionAddressAllocated); c != nil {
		gotReason = c.Reason
	}

	if !slices.Equal(got, addresses) || gotReason != reason {
		w.t.Errorf("%s has %v, %q; want %v, %q", claim.Name, got, gotReason, addresses, reason)
	}
}

// updateStatus changes a claim's status as another controller does.
func (w *claimFixture) updateStatus(claim *v1alpha1.MachineClaim, edit func(*v1alpha1.MachineClaimStatus)) {
	w.t.Helper()
	w.refreshObject(claim)
	edit(&claim.Status)

	w.must(env.Client.Status().Update(w.t.Context(), claim))
}

// Each claim gets a different address. The third claim waits, and gets the address of the first claim only
// after the machine of the first claim is deleted.
func TestClaimsGetAddresses(t *testing.T) {
	w := newClaimFixture(t)
	w.createSmallTemplate()

	a, b, c := w.createClaim("a"), w.createClaim("b"), w.createClaim("c")
	for _, claim := range []*v1alpha1.MachineClaim{a, b, c} {
		w.reconcileOnce(w.claims, claim)
	}

	w.requireAddresses(a, "Allocated", "10.0.0.10/16")
	w.requireAddresses(b, "Allocated", "10.0.0.11/16")
	w.requireAddresses(c, alloc.ReasonExhausted)

	w.must(env.Client.Delete(w.t.Context(), a))

	w.reconcileOnce(w.claims, a)
	w.reconcileOnce(w.claims, c)
	w.requireAddresses(c, alloc.ReasonExhausted)
	w.requireAddresses(a, "Allocated", "10.0.0.10/16")

	w.updateStatus(a, func(s *v1alpha1.MachineClaimStatus) {
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionVMCleanedUp, Status: metav1.ConditionTrue, Reason: "Deleted",
		})
	})
	w.reconcileOnce(w.claims, a)
	w.requireAddresses(a, "")
	w.reconcileOnce(w.claims, c)
	w.requireAddresses(c, "Allocated", "10.0.0.10/16")
}

// If the response to a status write is lost, the claim keeps its address after another reconcile and in a
// new process.
func TestLostResponseOfClaimUpdate(t *testing.T) {
	w := newClaimFixture(t)
	w.createSmallTemplate()

	a, b := w.createClaim("a"), w.createClaim("b")
	w.losesResponses = true
	w.reconcileOnce(w.claims, a)
	w.losesResponses = false
	w.reconcileOnce(w.claims, a)
	w.reconcileOnce(w.claims, b)
	w.requireAddresses(a, "Allocated", "10.0.0.10/16")
	w.requireAddresses(b, "Allocated", "10.0.0.11/16")

	w.startReconcilers()

	for _, claim := range []*v1alpha1.MachineClaim{b, a} {
		w.reconcileOnce(w.claims, claim)
	}

	w.requireAddresses(a, "Allocated", "10.0.0.10/16")
	w.requireAddresses(b, "Allocated", "10.0.0.11/16")
}

// If a person records one address for two claims, the newer claim reports this, and both claims keep their
// addresses.
func TestAddressRecordedForTwoClaims(t *testing.T) {
	w := newClaimFixture(t)
	w.createSmallTemplate()

	a, b := w.createClaim("a"), w.createClaim("b")
	w.reconcileOnce(w.claims, a)
	w.updateStatus(b, func(s *v1alpha1.MachineClaimStatus) { s.NetworkInfo = a.Status.NetworkInfo.DeepCopy() })

	if result := w.reconcileOnce(w.claims, b); result.RequeueAfter <= 0 || result.RequeueAfter > time.Minute {
		t.Errorf("requeued after %s", result.RequeueAfter)
	}

	w.reconcileOnce(w.claims, a)
	w.requireAddresses(a, "Allocated", "10.0.0.10/16")
	w.requireAddresses(b, claims.ReasonAddressConflict, "10.0.0.10/16")
}

// A claim that is deleted without the operator leaves no address in use, and a new claim with the same name
// keeps its address.
func TestDeletedClaimReleasesAddress(t *testing.T) {
	w := newClaimFixture(t)
	w.createSmallTemplate()

	old := w.createClaim("a")
	w.reconcileOnce(w.claims, old)

	old.Finalizers = nil
	w.must(env.Client.Update(w.t.Context(), old))

	w.must(env.Client.Delete(w.t.Context(), old))

	claim := w.createClaim("a")
	w.reconcileOnce(w.claims, claim)
	w.requireAddresses(claim, "Allocated", "10.0.0.11/16") // the machine of the old claim may still use the first

	claim.Finalizers = nil
	w.must(env.Client.Update(w.t.Context(), claim))

	w.must(env.Client.Delete(w.t.Context(), claim))

	w.reconcileOnce(w.claims, claim)

	if left := w.addresses.OwnersWithPrefix("MachineClaim " + w.namespace + "/a/"); len(left) > 0 {
		t.Errorf("addresses in use: %v", left)
	}
}

// The area allocates addresses to claims, with the permissions of its account.
func TestAreaAllocatesAddresses(t *testing.T) {
	t.Parallel()

	w := newFixture(t)
	w.createTemplate("small", w.createCluster("c", nil), "", "10.0.0.10-10.0.0.11")

	claim := newMachineClaim(w.namespace, "a", "small")
	env.Create(t, claim)
	w.waitUntil("the claim has an address", func() bool {
		return meta.IsStatusConditionTrue(getClaim(t, claim).Status.Conditions, v1alpha1.ConditionAddressAllocated)
	})
}

// If a template loses its pool, only machines that have not started lose their addresses. A machine that
// runs without an address gets none.
func TestTemplateWithoutPool(t *testing.T) {
	w := newClaimFixture(t)
	template := w.createSmallTemplate()

	running, waiting := w.createClaim("running"), w.createClaim("waiting")
	w.reconcileOnce(w.claims, running)

	now := metav1.NowMicro()
	w.updateStatus(waiting, func(s *v1alpha1.MachineClaimStatus) { s.Times = &v1alpha1.MachineTimes{Started: &now} })
	w.reconcileOnce(w.claims, waiting)
	w.requireAddresses(waiting, "")

	template.Spec.Network = nil
	w.must(env.Client.Update(w.t.Context(), template))

	w.reconcileOnce(w.templates, template)
	w.reconcileOnce(w.claims, running)
	w.requireAddresses(running, "Allocated", "10.0.0.10/16")

	if c := meta.FindStatusCondition(template.Status.Conditions, v1alpha1.ConditionAddressPoolReady); c != nil {
		t.Errorf("the template has the condition %s %s: %s", c.Type, c.Reason, c.Message)
	}

	late := w.createClaim("late")
	w.reconcileOnce(w.claims, late)
	w.requireAddresses(late, "")
}

// The template and its claims report why no addresses can be allocated from the pool.
func TestTemplateErrors(t *testing.T) {
	t.Parallel()

	for name, tt := range map[string]struct {
		spoil  func(*v1alpha1.HypervisorMachineTemplate, *v1alpha1.HypervisorCluster)
		reason string
		says   string
		claim  string
	}{
		"missing cluster": {
			spoil: func(t *v1alpha1.HypervisorMachineTemplate, _ *v1alpha1.HypervisorCluster) {
				t.Spec.HypervisorClusterRef.Name = "nowhere"
			},
			reason: "ClusterNotFound", says: `HypervisorCluster "nowhere" does not exist`,
		},
		"the pod network": {
			spoil: func(_ *v1alpha1.HypervisorMachineTemplate, c *v1alpha1.HypervisorCluster) {
				c.Spec.KubeVirt.Network = ""
			},
			reason: claims.ReasonPoolInvalid, says: "NetworkAttachmentDefinition", claim: claims.ReasonPoolInvalid,
		},
		"a namespace that is not allowed": {
			spoil: func(_ *v1alpha1.HypervisorMachineTemplate, c *v1alpha1.HypervisorCluster) {
				c.Spec.AllowedNamespaces = []v1alpha1.NamespaceAccess{{Names: []string{"others"}}}
			},
			reason: "NamespaceNotAllowed", says: "allowedNamespaces",
		},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			w := newClaimFixture(t)
			template := w.createSmallTemplate()

			var cluster v1alpha1.HypervisorCluster
			must.Do(t, env.Client.Get(t.Context(), client.ObjectKey{Name: w.namespace + "-c"}, &cluster))

			tt.spoil(template, &cluster)

			must.Do(t, errors.Join(env.Client.Update(t.Context(), &cluster), env.Client.Update(t.Context(), template)))

			w.reconcileOnce(w.templates, template)

			c := meta.FindStatusCondition(template.Status.Conditions, v1alpha1.ConditionAddressPoolReady)
			if c == nil || c.Status != metav1.ConditionFalse || c.Reason != tt.reason || !strings.Contains(c.Message, tt.says) {
				t.Errorf("condition %+v; want %s: ...%s", c, tt.reason, tt.says)
			}

			claim := w.createClaim("a")
			w.reconcileOnce(w.claims, claim)
			w.requireAddresses(claim, tt.claim)
		})
	}
}

// A claim whose status was lost gets its addresses again, also in a new process in which another claim comes
// first. The addresses of a claim that was restored with another UID stay in use, because its machine may
// still run.
func TestClaimsRestoredWithoutStatus(t *testing.T) {
	w := newClaimFixture(t)
	w.createSmallTemplate()

	first, gone := w.createClaim("first"), w.createClaim("gone")
	w.reconcileOnce(w.claims, first)
	w.reconcileOnce(w.claims, gone)

	want := first.Status.NetworkInfo.Addresses

	// A claim of a version without the annotation.
	first.Annotations = nil
	w.must(env.Client.Update(t.Context(), first))
	w.reconcileOnce(w.claims, first)

	gone.Finalizers = nil
	w.must(env.Client.Update(t.Context(), gone))
	w.must(env.Client.Delete(t.Context(), gone))

	first.Status = v1alpha1.MachineClaimStatus{}
	w.must(env.Client.Status().Update(t.Context(), first))

	second := w.createClaim("second")

	w.startReconcilers()
	w.reconcileOnce(w.claims, second)
	w.reconcileOnce(w.claims, first)

	if first.Status.NetworkInfo == nil || !slices.Equal(first.Status.NetworkInfo.Addresses, want) {
		t.Fatalf("the claim has %+v, want %v", first.Status.NetworkInfo, want)
	}

	if slices.Equal(second.Status.NetworkInfo.Addresses, want) {
		t.Errorf("the new claim has %v, too", want)
	}

	// Restored with another UID: the first machine may still have its address, and the pool has no other one.
	restored := first.DeepCopy()
	first.Finalizers = nil
	w.must(env.Client.Update(t.Context(), first))
	w.must(env.Client.Delete(t.Context(), first))
	restored.UID, restored.ResourceVersion, restored.Status = "", "", v1alpha1.MachineClaimStatus{}
	w.must(env.Client.Create(t.Context(), restored))

	w.startReconcilers()
	w.reconcileOnce(w.claims, restored)

	if condition := meta.FindStatusCondition(restored.Status.Conditions, v1alpha1.ConditionAddressAllocated); condition == nil || condition.Reason != alloc.ReasonExhausted {
		t.Errorf("the restored claim has %+v, want none", condition)
	}
}
