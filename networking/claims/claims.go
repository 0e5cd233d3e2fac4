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
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"

	"github.com/hyperfleet/hyperfleet/kit/watch"
	"github.com/hyperfleet/hyperfleet/networking/alloc"
	"github.com/hyperfleet/hyperfleet/networking/claimstatus"
	"github.com/hyperfleet/hyperfleet/networking/pools"
)

const (
	// exhaustedRetry is the delay before a claim without an address is reconciled again. Usually the address
	// registry enqueues the claim earlier, when an address is free.
	exhaustedRetry = 5 * time.Minute
	// requeueDelay is the delay before a claim is reconciled again if no event may follow.
	requeueDelay = 2 * time.Second
	// conflictRetry is the delay before a claim with an address of another owner is reconciled again.
	conflictRetry = 30 * time.Second
)

// reasonAllocated means that the addresses were allocated from the pool of the template.
const reasonAllocated = "Allocated"

// unknownOwnerPrefix and the claim's owner form the owner under which the address registry records that the
// addresses of a claim's machine are unknown.
const unknownOwnerPrefix = "the machine of "

// ReasonAddressConflict means that a recorded address also belongs to another machine.
const ReasonAddressConflict = "AddressConflict"

// fieldOwner is the field manager of the fields that this package writes into statuses of other owners.
const fieldOwner = "hyperfleet-addresses"

// ClaimReconciler allocates addresses to MachineClaims. It adds no finalizer, so it never delays the deletion
// of a claim.
type ClaimReconciler struct {
	Client client.Client
	// APIReader reads from the API server, not from a cache.
	APIReader client.Reader
	Addresses *pools.AddressRegistry
	Registry  *TemplateRegistry
	Recorder  events.EventRecorder
	Clock     clock.WithTicker
	// Concurrency is the number of claims that are reconciled at the same time.
	Concurrency int

	changed watch.Source
	inUse   inUseAddresses
}

func (c *ClaimReconciler) writer() *claimstatus.Writer {
	return &claimstatus.Writer{
		Client: c.Client, Clock: c.Clock, Owner: fieldOwner, Types: []string{v1alpha1.ConditionAddressAllocated},
		Fields: [][]string{{"networkInfo", "addresses"}, {"networkInfo", "addressNetwork"}},
	}
}

//+kubebuilder:rbac:groups=hyperfleet.io,resources=machineclaims,verbs=get;list;watch;patch
//+kubebuilder:rbac:groups=hyperfleet.io,resources=machineclaims/status,verbs=patch
//+kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// SetupWithManager adds the controller to a manager.
func (c *ClaimReconciler) SetupWithManager(mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("claimaddress").
		For(&v1alpha1.MachineClaim{}).
		Watches(&v1alpha1.HypervisorMachineTemplate{}, handler.EnqueueRequestsFromMapFunc(c.enqueueWaitingClaims)).
		WatchesRawSource(c.Addresses.RebuildSource(c.Clock)).
		WatchesRawSource(&c.changed).
		WithOptions(controller.Options{MaxConcurrentReconciles: c.Concurrency, ReconciliationTimeout: reconcileTimeout}).
		Complete(c)
	if err != nil {
		return fmt.Errorf("add controller claimaddress: %w", err)
	}

	return nil
}

// enqueueWaitingClaims enqueues the claims of a template that have no address.
func (c *ClaimReconciler) enqueueWaitingClaims(ctx context.Context, template client.Object) []reconcile.Request {
	return watch.ListRequests(ctx, c.Client, &v1alpha1.MachineClaimList{}, func(claim *v1alpha1.MachineClaim) bool {
		return claim.Spec.TemplateRef.Name == template.GetName() && len(recordedAddresses(claim)) == 0
	}, client.InNamespace(template.GetNamespace()))
}

// Reconcile allocates, verifies or releases the addresses of one claim. It allocates none to a machine that has
// already started without addresses.
func (c *ClaimReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var claim v1alpha1.MachineClaim

	err := c.Client.Get(ctx, req.NamespacedName, &claim)
	if apierrors.IsNotFound(err) {
		return reconcile.Result{}, c.releaseDeleted(ctx, req.NamespacedName)
	}

	if err != nil {
		return reconcile.Result{}, fmt.Errorf("get claim: %w", err)
	}

	c.blockPoolWhileUnknown(&claim)
	c.inUse.releaseExpired(c.Addresses, c.Clock.Now())

	switch {
	case !claim.DeletionTimestamp.IsZero():
		return reconcile.Result{}, c.release(ctx, &claim)
	case hasObservedAddresses(&claim):
		return c.adoptObservedAddresses(ctx, &claim)
	case hasAddressInUse(&claim):
		return reconcile.Result{}, c.replaceAddresses(ctx, &claim)
	case len(recordedAddresses(&claim)) > 0:
		return c.verifyAddresses(ctx, &claim)
	}

	if isRestored, result, err := c.restoreStatus(ctx, &claim); isRestored || err != nil {
		return result, err
	}

	if hasStarted(&claim) {
		// The machine has started without addresses. If its template requests addresses since then, the change
		// applies only to new machines.
		return reconcile.Result{}, nil
	}

	return c.allocate(ctx, &claim)
}

// recordedAddresses returns the addresses in the claim's status.
func recordedAddresses(claim *v1alpha1.MachineClaim) []string {
	if claim.Status.NetworkInfo == nil {
		return nil
	}

	return claim.Status.NetworkInfo.Addresses
}

// hasStarted returns whether the machine runs or has run.
func hasStarted(claim *v1alpha1.MachineClaim) bool {
	times := claim.Status.Times

	return times != nil && (times.Started != nil || times.Ended != nil)
}

// allocate allocates addresses to the machine and records them in the status. The runners area creates the
// machine only after this.
func (c *ClaimReconciler) allocate(ctx context.Context, claim *v1alpha1.MachineClaim) (reconcile.Result, error) {
	name := types.NamespacedName{Namespace: claim.Namespace, Name: claim.Spec.TemplateRef.Name}

	hasPool, err := c.hasPool(ctx, name)
	if err != nil {
		return reconcile.Result{}, err
	}

	if !hasPool {
		c.Addresses.Release(OwnerKey(claim)) // the claim may have waited for an address

		return reconcile.Result{}, c.clearStatus(ctx, claim)
	}

	entry, found := c.Registry.EntryOf(name)

	switch {
	case !found:
		return reconcile.Result{RequeueAfter: requeueDelay}, nil // TemplateReconciler has not reconciled the template yet
	case entry.Reason != "":
		c.Addresses.StopWaiting(OwnerKey(claim)) // the claim may have waited for another pool

		return reconcile.Result{}, c.reportNoAddress(ctx, claim, entry.Reason, entry.Message)
	}

	// The status may already have addresses that the cache does not show yet. If the template has changed
	// since, these addresses must not be overwritten.
	if len(c.Addresses.AddressesOf(OwnerKey(claim))) > 0 {
		var live v1alpha1.MachineClaim
		if err := c.APIReader.Get(ctx, client.ObjectKeyFromObject(claim), &live); err != nil {
			return reconcile.Result{}, client.IgnoreNotFound(err)
		}

		if live.UID != claim.UID || len(recordedAddresses(&live)) > 0 {
			return reconcile.Result{}, nil // an event for the newer object follows
		}
	}

	addresses, err := c.Addresses.Acquire(pools.Request{
		Network: entry.Network, Pool: entry.Pool, Owner: OwnerKey(claim), UnreadOwner: unknownOwnerPrefix + OwnerKey(claim),
		Wake: c.changed.EnqueueFunc(client.ObjectKeyFromObject(claim)),
	})
	if err != nil {
		return c.handleAcquireError(ctx, claim, err)
	}

	return reconcile.Result{}, c.recordAddresses(ctx, claim, entry.Network, addresses, reasonAllocated)
}

// hasPool returns whether a template has a pool. It returns false if there is no such template.
func (c *ClaimReconciler) hasPool(ctx context.Context, name types.NamespacedName) (bool, error) {
	var template v1alpha1.HypervisorMachineTemplate

	err := c.Client.Get(ctx, name, &template)
	if apierrors.IsNotFound(err) {
		return false, nil
	}

	if err != nil {
		return false, fmt.Errorf("get template %s: %w", name, err)
	}

	return template.Spec.Network.AddressPool() != nil, nil
}

// recordAddresses writes the addresses into the claim's status. If the write fails, the address registry
// keeps the addresses for this machine, so the next reconcile gets the same ones.
func (c *ClaimReconciler) recordAddresses(
	ctx context.Context, claim *v1alpha1.MachineClaim, network string, addresses []netip.Prefix, reason string,
) error {
	if err := c.writeMark(ctx, claim, network, addresses); err != nil {
		return claimstatus.IgnoreGone(err) // after a conflict, an event for the newer object follows
	}

	prefixes := make([]any, 0, len(addresses))
	for _, address := range addresses {
		prefixes = append(prefixes, address.String())
	}

	status := map[string]any{"networkInfo": map[string]any{"addresses": prefixes, "addressNetwork": network}}
	joined := strings.Trim(fmt.Sprint(addresses), "[]")

	err := c.writer().Apply(ctx, claim, status, newAllocatedCondition(reason, joined))
	if err != nil {
		return claimstatus.IgnoreGone(err)
	}

	if isRevoked, err := c.removeRevoked(ctx, claim, addresses); isRevoked || err != nil {
		return claimstatus.IgnoreGone(err) // an event for the newer object follows
	}

	event := "AddressesAllocated"
	if reason == v1alpha1.ReasonAddressesReadBack {
		event = reason
	}

	c.Recorder.Eventf(claim, nil, corev1.EventTypeNormal, event, "Allocate", "%s on network %s", joined, network)

	return nil
}

// removeRevoked removes addresses that this reconcile has just written, if revoke has taken them away in the
// meantime. Otherwise the claim would be in conflict with the claim whose machine has them, until a person
// acts.
func (c *ClaimReconciler) removeRevoked(
	ctx context.Context, claim *v1alpha1.MachineClaim, addresses []netip.Prefix,
) (isRevoked bool, err error) {
	held := c.Addresses.AddressesOf(OwnerKey(claim))
	isMissing := func(address netip.Prefix) bool { return !slices.Contains(held, address) }
	if !slices.ContainsFunc(addresses, isMissing) {
		return false, nil
	}

	var live v1alpha1.MachineClaim
	if err := c.APIReader.Get(ctx, client.ObjectKeyFromObject(claim), &live); err != nil || live.UID != claim.UID {
		return true, client.IgnoreNotFound(err)
	}

	return true, c.removeAddresses(ctx, &live)
}

// handleAcquireError handles an error of Acquire. It reports an exhausted pool and unknown addresses of other
// machines in the condition, and requeues the claim. If the registry has no such pool, it only requeues the
// claim. It returns all other errors.
func (c *ClaimReconciler) handleAcquireError(
	ctx context.Context, claim *v1alpha1.MachineClaim, err error,
) (reconcile.Result, error) {
	var (
		exhausted *alloc.ExhaustedError
		unread    *pools.UnreadError
	)

	switch {
	case errors.As(err, &unread):
		return reconcile.Result{RequeueAfter: exhaustedRetry},
			c.reportNoAddress(ctx, claim, "AddressesNotRead", unread.Error()+": see the condition Placed of their claims")
	case errors.As(err, &exhausted):
		previous := meta.FindStatusCondition(claim.Status.Conditions, v1alpha1.ConditionAddressAllocated)
		if previous == nil || previous.Reason != alloc.ReasonExhausted {
			c.Recorder.Eventf(claim, nil, corev1.EventTypeWarning, alloc.ReasonExhausted, "Allocate", "%s", exhausted.Error())
		}

		return reconcile.Result{RequeueAfter: c.inUse.retryAfter()},
			c.reportNoAddress(ctx, claim, alloc.ReasonExhausted, exhausted.Error())
	case errors.Is(err, alloc.ErrNoPool):
		return reconcile.Result{RequeueAfter: requeueDelay}, nil // the template has changed and is reconciled soon
	default:
		return reconcile.Result{}, err
	}
}

// reportNoAddress writes the reason why the claim has no address into the condition.
func (c *ClaimReconciler) reportNoAddress(ctx context.Context, claim *v1alpha1.MachineClaim, reason, message string) error {
	condition := metav1.Condition{
		Type: v1alpha1.ConditionAddressAllocated, Status: metav1.ConditionFalse, Reason: reason, Message: message,
	}
	if claimstatus.HasCondition(claim, condition) {
		return nil
	}

	return claimstatus.IgnoreGone(c.writer().Apply(ctx, claim, map[string]any{}, condition))
}

// clearStatus removes the condition and the addresses from the status.
func (c *ClaimReconciler) clearStatus(ctx context.Context, claim *v1alpha1.MachineClaim) error {
	allocated := meta.FindStatusCondition(claim.Status.Conditions, v1alpha1.ConditionAddressAllocated)
	if allocated == nil && len(recordedAddresses(claim)) == 0 {
		return nil
	}

	return claimstatus.IgnoreGone(c.writer().Apply(ctx, claim, map[string]any{}))
}

// isOutdated returns true if the claim's status on the API server has other addresses than this copy from the
// cache. The addresses of the copy may have been taken away or replaced, so they must be neither restored nor
// written again.
func (c *ClaimReconciler) isOutdated(ctx context.Context, claim *v1alpha1.MachineClaim) (bool, error) {
	held := make([]string, 0, len(recordedAddresses(claim)))
	for _, address := range c.Addresses.AddressesOf(OwnerKey(claim)) {
		held = append(held, address.String())
	}

	if slices.Equal(held, recordedAddresses(claim)) {
		return false, nil
	}

	var live v1alpha1.MachineClaim
	if err := c.APIReader.Get(ctx, client.ObjectKeyFromObject(claim), &live); err != nil {
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	}

	return live.UID != claim.UID || !slices.Equal(recordedAddresses(&live), recordedAddresses(claim)), nil
}

// verifyAddresses restores the recorded addresses into the address registry, and reports a conflict. A conflict
// occurs if a status was edited by hand, so that two machines have the same address.
func (c *ClaimReconciler) verifyAddresses(ctx context.Context, claim *v1alpha1.MachineClaim) (reconcile.Result, error) {
	if isOutdated, err := c.isOutdated(ctx, claim); err != nil || isOutdated {
		return reconcile.Result{}, err // an event for the newer object follows
	}

	reason := reasonAllocated

	previous := meta.FindStatusCondition(claim.Status.Conditions, v1alpha1.ConditionAddressAllocated)
	if previous != nil && previous.Reason == v1alpha1.ReasonAddressesReadBack {
		reason = previous.Reason
	}

	var requeueAfter time.Duration

	condition := newAllocatedCondition(reason, strings.Join(recordedAddresses(claim), " "))

	if err := restore(c.Addresses, c.Registry, claim); err != nil {
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, ReasonAddressConflict, err.Error()
		requeueAfter = conflictRetry
	}

	// A version without the annotation has allocated the addresses.
	hasMark := claim.Annotations[v1alpha1.AnnotationAddresses] != ""
	if marked, err := newMark(claim); !hasMark && err == nil {
		if err := c.writeMark(ctx, claim, marked.network, marked.addresses); err != nil {
			return reconcile.Result{}, claimstatus.IgnoreGone(err) // after a conflict, an event for the newer object follows
		}
	}

	if claimstatus.HasCondition(claim, condition) {
		return reconcile.Result{RequeueAfter: requeueAfter}, nil
	}

	// Write the same addresses again, because a machine may use them.
	status := map[string]any{"networkInfo": map[string]any{
		"addresses": toAnySlice(recordedAddresses(claim)), "addressNetwork": claim.Status.NetworkInfo.AddressNetwork,
	}}

	return reconcile.Result{RequeueAfter: requeueAfter}, claimstatus.IgnoreGone(c.writer().Apply(ctx, claim, status, condition))
}

func newAllocatedCondition(reason, addresses string) metav1.Condition {
	return metav1.Condition{
		Type: v1alpha1.ConditionAddressAllocated, Status: metav1.ConditionTrue, Reason: reason, Message: addresses,
	}
}

func toAnySlice(values []string) []any {
	out := make([]any, 0, len(values))
	for _, value := range values {
		out = append(out, value)
	}

	return out
}

// release releases the addresses of a claim that is being deleted. It does so only after the machine is deleted
// and after the status without the addresses is written, so that a rebuild never finds two machines with the
// same address.
func (c *ClaimReconciler) release(ctx context.Context, claim *v1alpha1.MachineClaim) error {
	owner := OwnerKey(claim)

	if len(c.Addresses.AddressesOf(owner)) == 0 && len(recordedAddresses(claim)) == 0 {
		c.Addresses.Release(owner) // the claim may have waited for an address

		return nil
	}

	if !meta.IsStatusConditionTrue(claim.Status.Conditions, v1alpha1.ConditionVMCleanedUp) {
		return nil
	}

	// An earlier write that seemed to fail may have recorded addresses that this copy does not have. Apply
	// removes these addresses too.
	if err := c.writer().Apply(ctx, claim, map[string]any{}); err != nil {
		return claimstatus.IgnoreGone(err) // releaseDeleted handles a claim that no longer exists
	}

	c.Addresses.Release(owner)

	return nil
}

// releaseDeleted releases the addresses of claims with this name that no longer exist. Their machines
// do not exist either, because the finalizer of the runners area waits for the deletion of the machine.
func (c *ClaimReconciler) releaseDeleted(ctx context.Context, name types.NamespacedName) error {
	owners := c.Addresses.OwnersWithPrefix(ownerKeyPrefix(name))

	// The cache may not have a new claim with this name yet.
	var claim v1alpha1.MachineClaim

	err := c.APIReader.Get(ctx, name, &claim)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read claim %s: %w", name, err)
	}

	owners = append(owners, c.Addresses.OwnersWithPrefix(unknownOwnerPrefix+ownerKeyPrefix(name))...)

	// If there is no claim with this name, its UID is empty, and so no owner is kept.
	for _, owner := range owners {
		if strings.TrimPrefix(owner, unknownOwnerPrefix) != OwnerKey(&claim) {
			c.Addresses.Release(owner)
		}
	}

	return nil
}

// OwnerKey returns the owner of a claim's addresses in the address registry.
func OwnerKey(claim *v1alpha1.MachineClaim) string {
	return ownerKeyPrefix(client.ObjectKeyFromObject(claim)) + string(claim.UID)
}

// ownerKeyPrefix returns the common prefix of the owners of all claims with this name, old and new. The
// owner of a KubevirtMachine never has this prefix.
func ownerKeyPrefix(name types.NamespacedName) string { return kindClaim + " " + name.String() + "/" }
