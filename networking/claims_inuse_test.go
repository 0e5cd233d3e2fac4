// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package networking_test

import (
	"context"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// reportPlaced writes the condition Placed of a claim without a machine, as the runners area does.
func (w *claimFixture) reportPlaced(claim *v1alpha1.MachineClaim, reason, message string) {
	w.t.Helper()

	meta.SetStatusCondition(&claim.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionPlaced, Status: metav1.ConditionFalse, Reason: reason, Message: message,
	})
	w.must(env.Client.Status().Update(w.t.Context(), claim))
}

// A claim whose address another machine has gets one other address, and keeps it until the runners area has tried it.
func TestClaimReplacesAddressOnce(t *testing.T) {
	w := newClaimFixture(t)
	w.createSmallTemplate()

	claim := w.createClaim("a")
	w.reconcileOnce(w.claims, claim)

	taken := claim.Status.NetworkInfo.Addresses
	w.reportPlaced(claim, hypervisor.ReasonAddressInUse, taken[0]+": machine 7 has it")

	for range 4 { // once to remove the address, once to get another one, and for its own writes
		w.reconcileOnce(w.claims, claim)
	}

	if info := claim.Status.NetworkInfo; info == nil || len(info.Addresses) != 1 || slices.Equal(info.Addresses, taken) {
		t.Errorf("the claim has %+v, want one other address than %v", info, taken)
	}
}

// A claim whose status another program has restored gets another address too, although the program owns the field.
func TestRestoredClaimReplacesAddress(t *testing.T) {
	w := newClaimFixture(t)
	w.createSmallTemplate()

	claim := w.createClaim("a")
	w.reconcileOnce(w.claims, claim)

	const restored = "10.0.0.12/16"

	claim.Status.NetworkInfo.Addresses = []string{restored}
	w.reportPlaced(claim, hypervisor.ReasonAddressInUse, restored+": machine 7 has it")

	for range 4 { // as above
		w.reconcileOnce(w.claims, claim)
	}

	if info := claim.Status.NetworkInfo; info == nil || len(info.Addresses) != 1 || info.Addresses[0] == restored {
		t.Errorf("the claim has %+v, want one other address than %s", info, restored)
	}

	// The status of a deleted claim does not keep them either.
	claim.Status.NetworkInfo.Addresses = []string{restored}
	meta.SetStatusCondition(&claim.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionVMCleanedUp, Status: metav1.ConditionTrue, Reason: "Deleted",
	})
	w.must(env.Client.Status().Update(t.Context(), claim))
	w.must(env.Client.Delete(t.Context(), claim))
	w.reconcileOnce(w.claims, claim)

	if info := claim.Status.NetworkInfo; info != nil && len(info.Addresses) > 0 {
		t.Errorf("the deleted claim still has %v", info.Addresses)
	}
}

// It gets another one also if the program owns a part of the condition, without which the rest would be invalid.
func TestRestoredConditionKeepsNoAddress(t *testing.T) {
	w := newClaimFixture(t)
	w.createSmallTemplate()

	claim := w.createClaim("a")
	claim.Status.NetworkInfo = &v1alpha1.NetworkInfo{}
	meta.SetStatusCondition(&claim.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionAddressAllocated, Status: metav1.ConditionTrue, Reason: "Allocated", Message: "of another time",
	})
	w.must(env.Client.Status().Update(t.Context(), claim))
	w.reconcileOnce(w.claims, claim)

	used := claim.Status.NetworkInfo.Addresses[0]
	w.reportPlaced(claim, hypervisor.ReasonAddressInUse, used+": machine 7 has it")

	for range 4 { // as above
		w.reconcileOnce(w.claims, claim)
	}

	if info := claim.Status.NetworkInfo; info == nil || len(info.Addresses) != 1 || info.Addresses[0] == used {
		t.Errorf("the claim has %+v, want one other address than %s", info, used)
	}

	if !meta.IsStatusConditionTrue(claim.Status.Conditions, v1alpha1.ConditionAddressAllocated) {
		t.Errorf("the conditions are %+v", claim.Status.Conditions)
	}
}

// A claim gets the addresses in its annotation only if the runners area has found its machine. Otherwise its author could
// take any address, also those of others.
func TestClaimDoesNotChooseItsAddress(t *testing.T) {
	w := newClaimFixture(t)
	w.createSmallTemplate()

	other := w.createClaim("other")
	w.reconcileOnce(w.claims, other)

	want := slices.Clone(other.Status.NetworkInfo.Addresses)

	claim := newMachineClaim(w.namespace, "thief", "small")
	claim.Annotations = map[string]string{v1alpha1.AnnotationAddresses: want[0]}
	env.Create(t, claim)

	w.startReconcilers()
	w.reconcileOnce(w.claims, claim)
	w.reconcileOnce(w.claims, claim)
	w.refreshObject(other)

	if info := other.Status.NetworkInfo; info == nil || !slices.Equal(info.Addresses, want) {
		t.Errorf("the other claim has %+v, want %v", info, want)
	}

	if info := claim.Status.NetworkInfo; info == nil || len(info.Addresses) != 1 || slices.Equal(info.Addresses, want) {
		t.Errorf("the claim has %+v, want one address of its own", info)
	}

	// Its machine exists, with the address.
	w.reportPlaced(claim, v1alpha1.ReasonAddressesReadBack, "")
	claim.Annotations[v1alpha1.AnnotationAddresses] = want[0]
	w.must(env.Client.Update(t.Context(), claim))
	w.reconcileOnce(w.claims, claim)

	if !slices.Equal(claim.Status.NetworkInfo.Addresses, want) {
		t.Errorf("the claim has %+v, and its machine %v", claim.Status.NetworkInfo, want)
	}
}

// While the addresses of a machine are unknown, its pool allocates none, also while the machine is being deleted.
func TestUnknownAddressesUntilMachineIsDeleted(t *testing.T) {
	w := newClaimFixture(t)
	w.createSmallTemplate()

	unknown, next := w.createClaim("unknown"), w.createClaim("next")
	w.reconcileOnce(w.claims, unknown)
	w.reportPlaced(unknown, v1alpha1.ReasonAddressesUnknown, "")
	w.must(env.Client.Delete(t.Context(), unknown))
	w.reconcileOnce(w.claims, unknown)

	w.reconcileOnce(w.claims, next)

	if info := next.Status.NetworkInfo; info != nil {
		t.Errorf("the next claim has %+v, which the machine may have", info)
	}

	meta.SetStatusCondition(&unknown.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionVMCleanedUp, Status: metav1.ConditionTrue, Reason: "Deleted",
	})
	w.must(env.Client.Status().Update(t.Context(), unknown))
	w.reconcileOnce(w.claims, unknown)
	w.reconcileOnce(w.claims, next)

	if info := next.Status.NetworkInfo; info == nil || len(info.Addresses) != 1 {
		t.Errorf("the next claim has %+v, and the machine is deleted", info)
	}
}

// The annotation of a claim has at most one address of each family. Otherwise its author could hold a whole pool with it.
func TestClaimHoldsNoPool(t *testing.T) {
	w := newClaimFixture(t)
	w.createSmallTemplate()

	first := w.createClaim("first")
	w.reconcileOnce(w.claims, first)

	greedy := newMachineClaim(w.namespace, "greedy", "small")
	greedy.Annotations = map[string]string{
		v1alpha1.AnnotationAddresses: "earlier " + first.Status.NetworkInfo.AddressNetwork + " 10.0.0.11/16,10.0.0.12/16",
	}
	env.Create(t, greedy)

	w.startReconcilers()

	next := w.createClaim("next")
	w.reconcileOnce(w.claims, next)

	if info := next.Status.NetworkInfo; info == nil || len(info.Addresses) != 1 {
		t.Errorf("the next claim has %+v, and an address is free", info)
	}
}

// interruptedClient calls interrupt before or after the first patch of a claim.
type interruptedClient struct {
	client.Client

	name      string
	isAfter   bool
	interrupt func()
}

func (c *interruptedClient) Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
	call := c.interrupt
	if obj.GetName() != c.name || call == nil {
		return c.Client.Patch(ctx, obj, patch, opts...)
	}

	c.interrupt = nil

	if c.isAfter {
		defer call()
	} else {
		call()
	}

	return c.Client.Patch(ctx, obj, patch, opts...)
}

// A claim that is just being given an address when the machine of another claim is found with it gets another one. Its write
// must not come after the address was taken away, because it would be in conflict until a person acts.
func TestAddressIsTakenAwayWhileItIsWritten(t *testing.T) {
	t.Parallel()

	for name, isAfter := range map[string]bool{"before its annotation is written": false, "between its annotation and its status": true} {
		t.Run(name, func(t *testing.T) {
			w := newClaimFixture(t)
			w.createSmallTemplate()

			found := w.createClaim("found")
			found.Annotations = map[string]string{v1alpha1.AnnotationAddresses: "10.0.0.10/16"}
			w.must(env.Client.Update(t.Context(), found))
			w.reportPlaced(found, v1alpha1.ReasonAddressesReadBack, "")

			claim := w.createClaim("a")
			w.claims.Client = &interruptedClient{Client: w.claims.Client, name: claim.Name, isAfter: isAfter, interrupt: func() {
				w.reconcileOnce(w.claims, found)
			}}

			for range 4 { // once for the address that is taken away, once to get another one, and for its own writes
				w.reconcileOnce(w.claims, claim)
			}

			w.requireAddresses(found, v1alpha1.ReasonAddressesReadBack, "10.0.0.10/16")
			w.requireAddresses(claim, "Allocated", "10.0.0.11/16")
		})
	}
}
