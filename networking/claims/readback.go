// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/networking/alloc"
	"github.com/hyperfleet/hyperfleet/networking/pools"
)

// mark is the content of a claim's annotation with its addresses. It survives the loss of the status.
type mark struct {
	// uid is the UID of the claim whose machine has the addresses. A restored claim has another UID.
	uid       types.UID
	network   string
	addresses []netip.Prefix
}

// encode returns the value of the annotation.
func (m mark) encode() string {
	texts := make([]string, 0, len(m.addresses))
	for _, address := range m.addresses {
		texts = append(texts, address.String())
	}

	return string(m.uid) + " " + m.network + " " + strings.Join(texts, ",")
}

// newMark returns the mark with the addresses in the claim's status.
func newMark(claim *v1alpha1.MachineClaim) (mark, error) {
	out := mark{uid: claim.UID, network: claim.Status.NetworkInfo.AddressNetwork}

	for _, text := range recordedAddresses(claim) {
		address, err := netip.ParsePrefix(text)
		if err != nil {
			return mark{}, fmt.Errorf("parse status.networkInfo.addresses: %q is not an address with a prefix length", text)
		}

		out.addresses = append(out.addresses, address)
	}

	return out, nil
}

// hasObservedAddresses returns true if the annotation contains only addresses. In this case the runners area or a person
// has written the addresses with which the claim's machine was created. Anyone who can create a claim can also
// write the annotation, so it counts only if the runners area has found a machine.
func hasObservedAddresses(claim *v1alpha1.MachineClaim) bool {
	value := claim.Annotations[v1alpha1.AnnotationAddresses]
	placed := meta.FindStatusCondition(claim.Status.Conditions, v1alpha1.ConditionPlaced)

	return value != "" && !strings.Contains(value, " ") && placed != nil &&
		(placed.Reason == v1alpha1.ReasonAddressesReadBack || placed.Reason == v1alpha1.ReasonAddressesUnknown)
}

// markOf returns the mark of a claim, and false if it has none. A mark has at most one address of each family. entry is
// that of the claim's template.
func markOf(claim *v1alpha1.MachineClaim, entry Entry) (mark, bool) {
	value := claim.Annotations[v1alpha1.AnnotationAddresses]
	if hasObservedAddresses(claim) {
		value = string(claim.UID) + " " + observedNetwork(claim, entry) + " " + value
	}

	uid, rest, _ := strings.Cut(value, " ")

	network, texts, found := strings.Cut(rest, " ")
	if !found || network == "" {
		return mark{}, false
	}

	out := mark{uid: types.UID(uid), network: network}

	for text := range strings.SplitSeq(texts, ",") {
		address, err := netip.ParsePrefix(text)
		isSameFamily := func(other netip.Prefix) bool { return other.Addr().Is4() == address.Addr().Is4() }

		if err != nil || slices.ContainsFunc(out.addresses, isSameFamily) {
			return mark{}, false
		}

		out.addresses = append(out.addresses, address)
	}

	return out, true
}

func observedNetwork(claim *v1alpha1.MachineClaim, entry Entry) string {
	if info := claim.Status.NetworkInfo; info != nil && info.AddressNetwork != "" {
		return info.AddressNetwork
	}

	return entry.Network
}

// owner returns the owner of the marked addresses in the address registry.
func (m mark) owner(claim *v1alpha1.MachineClaim) string {
	return ownerKeyPrefix(client.ObjectKeyFromObject(claim)) + string(m.uid)
}

// restoreMark restores the marked addresses of a claim without addresses in its status into the address
// registry. The addresses of an earlier claim with the same name stay in use until this claim is deleted,
// because its machine may still run.
func restoreMark(addresses *pools.AddressRegistry, entry Entry, claim *v1alpha1.MachineClaim) error {
	marked, found := markOf(claim, entry)
	if !found {
		return nil
	}

	for _, address := range marked.addresses {
		err := addresses.Restore(marked.network, alloc.Assignment{Owner: marked.owner(claim), Pool: entry.Pool, Address: address})
		if err != nil {
			return err
		}
	}

	return nil
}

func (r *TemplateRegistry) entryOfClaim(claim *v1alpha1.MachineClaim) Entry {
	entry, _ := r.EntryOf(types.NamespacedName{Namespace: claim.Namespace, Name: claim.Spec.TemplateRef.Name})

	return entry
}

// adoptObservedAddresses replaces the addresses in a claim's status with the addresses that its machine was created with. If
// one of these has been allocated to a claim without a machine since then, that claim gets another address.
func (c *ClaimReconciler) adoptObservedAddresses(ctx context.Context, claim *v1alpha1.MachineClaim) (reconcile.Result, error) {
	entry := c.Registry.entryOfClaim(claim)

	marked, found := markOf(claim, entry)

	switch {
	case !found && observedNetwork(claim, entry) == "":
		return reconcile.Result{RequeueAfter: requeueDelay}, nil // TemplateReconciler has not reconciled the template yet
	case !found:
		return reconcile.Result{}, c.reportNoAddress(ctx, claim, "AddressesInvalid", fmt.Sprintf(
			"the annotation %s has no address with a prefix length, at most one of each family: %q", v1alpha1.AnnotationAddresses,
			claim.Annotations[v1alpha1.AnnotationAddresses]))
	}

	// If the claim already has the addresses of the machine, it must keep them, because another claim could get
	// released ones.
	if held := c.Addresses.AddressesOf(OwnerKey(claim)); !slices.Equal(held, marked.addresses) {
		c.Addresses.Release(OwnerKey(claim))
	}

	err := restoreMark(c.Addresses, entry, claim)

	var conflict *alloc.ConflictError
	for errors.As(err, &conflict) {
		if isRevoked, revokeErr := c.revoke(ctx, conflict.Holder); revokeErr != nil || !isRevoked {
			return reconcile.Result{RequeueAfter: conflictRetry}, errors.Join(revokeErr,
				c.reportNoAddress(ctx, claim, ReasonAddressConflict, err.Error()))
		}

		err = restoreMark(c.Addresses, entry, claim)
	}

	if err != nil {
		return reconcile.Result{}, err
	}

	return reconcile.Result{}, c.recordAddresses(ctx, claim, marked.network, marked.addresses, v1alpha1.ReasonAddressesReadBack)
}

// revoke releases the addresses of a claim that has no machine, and removes them from the claim's status. It
// changes nothing and returns false if the owner is not a claim, or if the claim has a machine or no longer
// exists.
func (c *ClaimReconciler) revoke(ctx context.Context, owner string) (isRevoked bool, err error) {
	const keyParts = 3 // namespace, name and UID

	text, isClaim := strings.CutPrefix(owner, kindClaim+" ")
	parts := strings.Split(text, "/")

	if !isClaim || len(parts) != keyParts {
		return false, nil
	}

	var holder v1alpha1.MachineClaim

	err = c.APIReader.Get(ctx, types.NamespacedName{Namespace: parts[0], Name: parts[1]}, &holder)

	switch {
	case apierrors.IsNotFound(err): // its machine may still run
		return false, nil
	case err != nil:
		return false, fmt.Errorf("get claim %s/%s: %w", parts[0], parts[1], err)
	case string(holder.UID) != parts[2]: // a newer claim: the machine of the older one may still run
		return false, nil
	case holder.Status.VMRef != nil || hasStarted(&holder):
		return false, nil
	}

	if err := c.removeAddresses(ctx, &holder); err != nil {
		return false, err
	}

	c.Addresses.Release(owner)

	// A reconcile of the holder may have written them once more. What it writes after the release, it removes itself.
	if err := c.APIReader.Get(ctx, client.ObjectKeyFromObject(&holder), &holder); err != nil {
		return true, client.IgnoreNotFound(err)
	}

	if len(recordedAddresses(&holder)) == 0 {
		return true, nil
	}

	return true, c.removeAddresses(ctx, &holder)
}

// removeAddresses removes the addresses from the annotation and the status of a claim.
func (c *ClaimReconciler) removeAddresses(ctx context.Context, claim *v1alpha1.MachineClaim) error {
	changed := claim.DeepCopy()
	delete(changed.Annotations, v1alpha1.AnnotationAddresses)

	patch := client.MergeFromWithOptions(claim, client.MergeFromWithOptimisticLock{})
	if err := c.Client.Patch(ctx, changed, patch); err != nil {
		return fmt.Errorf("remove addresses from annotations of claim %s: %w", client.ObjectKeyFromObject(claim), err)
	}

	return c.writer().Apply(ctx, changed, map[string]any{})
}

// blockPoolWhileUnknown makes the pool allocate no addresses while the claim's machine exists and its addresses are
// unknown. When they are known, the pool allocates addresses again.
func (c *ClaimReconciler) blockPoolWhileUnknown(claim *v1alpha1.MachineClaim) {
	if hasUnknownAddresses(claim) {
		markAddressesUnknown(c.Addresses, c.Registry, claim)
	} else if owner := unknownOwnerPrefix + OwnerKey(claim); c.Addresses.IsUnread(owner) {
		c.Addresses.MarkRead(owner)
	}
}

// hasUnknownAddresses returns whether the claim's machine exists and has unknown addresses.
func hasUnknownAddresses(claim *v1alpha1.MachineClaim) bool {
	placed := meta.FindStatusCondition(claim.Status.Conditions, v1alpha1.ConditionPlaced)

	return placed != nil && placed.Reason == v1alpha1.ReasonAddressesUnknown &&
		(claim.DeletionTimestamp.IsZero() || !meta.IsStatusConditionTrue(claim.Status.Conditions, v1alpha1.ConditionVMCleanedUp))
}

func markAddressesUnknown(addresses *pools.AddressRegistry, registry *TemplateRegistry, claim *v1alpha1.MachineClaim) {
	addresses.MarkUnread(registry.entryOfClaim(claim).Pool, unknownOwnerPrefix+OwnerKey(claim))
}

// writeMark writes the addresses of a claim into its annotation, before they are in its status.
func (c *ClaimReconciler) writeMark(
	ctx context.Context, claim *v1alpha1.MachineClaim, network string, addresses []netip.Prefix,
) error {
	value := mark{uid: claim.UID, network: network, addresses: addresses}.encode()
	if claim.Annotations[v1alpha1.AnnotationAddresses] == value {
		return nil
	}

	changed := claim.DeepCopy()
	if changed.Annotations == nil {
		changed.Annotations = map[string]string{}
	}

	changed.Annotations[v1alpha1.AnnotationAddresses] = value

	// The UID keeps the patch from a new claim with the same name.
	patch := client.MergeFromWithOptions(claim, client.MergeFromWithOptimisticLock{})
	if err := c.Client.Patch(ctx, changed, patch); err != nil {
		return fmt.Errorf("write addresses into annotations of claim %s: %w", client.ObjectKeyFromObject(claim), err)
	}

	return nil
}

// restoreStatus records the marked addresses of a claim in its status, if the status was lost. It returns false if
// there are none.
func (c *ClaimReconciler) restoreStatus(
	ctx context.Context, claim *v1alpha1.MachineClaim,
) (isRestored bool, result reconcile.Result, err error) {
	entry := c.Registry.entryOfClaim(claim)

	marked, found := markOf(claim, entry)
	if !found {
		return false, reconcile.Result{}, nil
	}

	err = restoreMark(c.Addresses, entry, claim)

	switch {
	case marked.uid != claim.UID:
		return false, reconcile.Result{}, nil // another machine has or had them
	case err != nil:
		return true, reconcile.Result{RequeueAfter: conflictRetry}, c.reportNoAddress(ctx, claim, ReasonAddressConflict, err.Error())
	default:
		return true, reconcile.Result{}, c.recordAddresses(ctx, claim, marked.network, marked.addresses, reasonAllocated)
	}
}
