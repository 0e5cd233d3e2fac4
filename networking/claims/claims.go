// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
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
	"github.com/hyperfleet/hyperfleet/kit/objects"
	"github.com/hyperfleet/hyperfleet/kit/trigger"
	"github.com/hyperfleet/hyperfleet/networking/alloc"
	"github.com/hyperfleet/hyperfleet/networking/claimstatus"
	"github.com/hyperfleet/hyperfleet/networking/pools"
)

const (
	// exhaustedRetry is how soon a claim without an address looks again without being woken:
	// the address registry wakes it when there is one.
	exhaustedRetry = 5 * time.Minute
	// lookAgain is how soon what no event may tell of is looked at again.
	lookAgain = 2 * time.Second
	// conflictRetry is how soon a claim is looked at again whose address another one has.
	conflictRetry = 30 * time.Second
)

// ReasonAddressConflict says that the addresses on record are another machine's as well.
const ReasonAddressConflict = "AddressConflict"

// fieldOwner of what this package writes into statuses that are others' otherwise.
const fieldOwner = "hyperfleet-addresses"

// Claims gives MachineClaims their addresses. It puts nothing on a claim that would keep
// it from going.
type Claims struct {
	Client client.Client
	// Live reads from the API server itself.
	Live      client.Reader
	Addresses *pools.AddressRegistry
	Registry  *Registry
	Recorder  events.EventRecorder
	Clock     clock.WithTicker
	// Concurrency is how many claims are worked on at a time.
	Concurrency int

	changed trigger.Source
}

func (c *Claims) writer() *claimstatus.Writer {
	return &claimstatus.Writer{Client: c.Client, Clock: c.Clock, Owner: fieldOwner}
}

//+kubebuilder:rbac:groups=hyperfleet.io,resources=machineclaims,verbs=get;list;watch
//+kubebuilder:rbac:groups=hyperfleet.io,resources=machineclaims/status,verbs=patch
//+kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// SetupWithManager adds the controller to a manager.
func (c *Claims) SetupWithManager(mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("claimaddress").
		For(&v1alpha1.MachineClaim{}).
		Watches(&v1alpha1.HypervisorMachineTemplate{}, handler.EnqueueRequestsFromMapFunc(c.waiting)).
		WatchesRawSource(c.Addresses.Gate(c.Clock)).
		WatchesRawSource(&c.changed).
		WithOptions(controller.Options{MaxConcurrentReconciles: c.Concurrency, ReconciliationTimeout: passTimeout}).
		Complete(c)
	if err != nil {
		return fmt.Errorf("add controller claimaddress: %w", err)
	}

	return nil
}

// waiting wakes the claims of a template that have no address.
func (c *Claims) waiting(ctx context.Context, template client.Object) []reconcile.Request {
	return objects.Requests(ctx, c.Client, &v1alpha1.MachineClaimList{}, func(claim *v1alpha1.MachineClaim) bool {
		return claim.Spec.TemplateRef.Name == template.GetName() && len(onRecord(claim)) == 0
	}, client.InNamespace(template.GetNamespace()))
}

// Reconcile looks at one claim.
func (c *Claims) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var claim v1alpha1.MachineClaim

	err := c.Client.Get(ctx, req.NamespacedName, &claim)
	if apierrors.IsNotFound(err) {
		return reconcile.Result{}, c.forget(ctx, req.NamespacedName)
	}

	if err != nil {
		return reconcile.Result{}, fmt.Errorf("get claim: %w", err)
	}

	switch {
	case !claim.DeletionTimestamp.IsZero():
		return reconcile.Result{}, c.release(ctx, &claim)
	case len(onRecord(&claim)) > 0:
		return c.confirm(ctx, &claim)
	case started(&claim):
		return reconcile.Result{}, nil // it runs without: whatever its template says now is for others
	default:
		return c.allocate(ctx, &claim)
	}
}

// onRecord are the addresses in the claim's status.
func onRecord(claim *v1alpha1.MachineClaim) []string {
	if claim.Status.NetworkInfo == nil {
		return nil
	}

	return claim.Status.NetworkInfo.Addresses
}

// started says whether the machine runs, or has run.
func started(claim *v1alpha1.MachineClaim) bool {
	times := claim.Status.Times

	return times != nil && (times.Started != nil || times.Ended != nil)
}

// allocate gives the machine its addresses, and has them in the status before anybody uses
// them.
func (c *Claims) allocate(ctx context.Context, claim *v1alpha1.MachineClaim) (reconcile.Result, error) {
	name := types.NamespacedName{Namespace: claim.Namespace, Name: claim.Spec.TemplateRef.Name}

	pooled, err := c.pooled(ctx, name)
	if err != nil {
		return reconcile.Result{}, err
	}

	if !pooled {
		c.Addresses.Release(Owner(claim)) // it may have waited for one

		return reconcile.Result{}, c.clear(ctx, claim)
	}

	entry, there := c.Registry.Of(name)

	switch {
	case !there:
		return reconcile.Result{RequeueAfter: lookAgain}, nil // its controller looks at it soon
	case entry.Reason != "":
		c.Addresses.Forget(Owner(claim)) // it may have waited in another pool

		return reconcile.Result{}, c.without(ctx, claim, entry.Reason, entry.Message)
	}

	// The address registry may have what the cache does not show yet: where the template has changed
	// since, that must not be overwritten.
	if len(c.Addresses.Of(Owner(claim))) > 0 {
		var live v1alpha1.MachineClaim
		if err := c.Live.Get(ctx, client.ObjectKeyFromObject(claim), &live); err != nil {
			return reconcile.Result{}, client.IgnoreNotFound(err)
		}

		if live.UID != claim.UID || len(onRecord(&live)) > 0 {
			return reconcile.Result{}, nil // an event follows
		}
	}

	got, err := c.Addresses.Acquire(pools.Request{
		Network: entry.Network, Pool: entry.Pool, Owner: Owner(claim), Wake: c.changed.For(client.ObjectKeyFromObject(claim)),
	})
	if err != nil {
		return c.refused(ctx, claim, err)
	}

	return reconcile.Result{}, c.give(ctx, claim, entry.Network, got)
}

// pooled says whether a template has a pool.
func (c *Claims) pooled(ctx context.Context, name types.NamespacedName) (bool, error) {
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

// give writes the addresses into the claim's status. Whatever becomes of the write, the
// addresses keeps them for this machine.
func (c *Claims) give(ctx context.Context, claim *v1alpha1.MachineClaim, network string, got []netip.Prefix) error {
	texts := make([]any, 0, len(got))
	for _, address := range got {
		texts = append(texts, address.String())
	}

	status := map[string]any{"networkInfo": map[string]any{"addresses": texts, "addressNetwork": network}}
	shown := strings.Trim(fmt.Sprint(got), "[]")

	err := c.writer().Apply(ctx, claim, status, allocated(shown))
	if err != nil {
		return claimstatus.IgnoreGone(err)
	}

	c.Recorder.Eventf(claim, nil, corev1.EventTypeNormal, "AddressesAllocated", "Allocate", "%s on network %s", shown, network)

	return nil
}

// refused says why there is no address.
func (c *Claims) refused(ctx context.Context, claim *v1alpha1.MachineClaim, err error) (reconcile.Result, error) {
	var exhausted *alloc.ExhaustedError

	switch {
	case errors.As(err, &exhausted):
		before := meta.FindStatusCondition(claim.Status.Conditions, v1alpha1.ConditionAddressAllocated)
		if before == nil || before.Reason != alloc.ReasonExhausted {
			c.Recorder.Eventf(claim, nil, corev1.EventTypeWarning, alloc.ReasonExhausted, "Allocate", "%s", exhausted.Error())
		}

		return reconcile.Result{RequeueAfter: exhaustedRetry}, c.without(ctx, claim, alloc.ReasonExhausted, exhausted.Error())
	case errors.Is(err, alloc.ErrNoPool):
		return reconcile.Result{RequeueAfter: lookAgain}, nil // its template has changed: that is looked at soon
	default:
		return reconcile.Result{}, err
	}
}

// without says in the condition why the claim has no address.
func (c *Claims) without(ctx context.Context, claim *v1alpha1.MachineClaim, reason, message string) error {
	condition := metav1.Condition{
		Type: v1alpha1.ConditionAddressAllocated, Status: metav1.ConditionFalse, Reason: reason, Message: message,
	}
	if claimstatus.Says(claim, condition) {
		return nil
	}

	return claimstatus.IgnoreGone(c.writer().Apply(ctx, claim, map[string]any{}, condition))
}

// clear takes the condition, and addresses, away.
func (c *Claims) clear(ctx context.Context, claim *v1alpha1.MachineClaim) error {
	if meta.FindStatusCondition(claim.Status.Conditions, v1alpha1.ConditionAddressAllocated) == nil && len(onRecord(claim)) == 0 {
		return nil
	}

	return claimstatus.IgnoreGone(c.writer().Apply(ctx, claim, map[string]any{}))
}

// confirm checks that the addresses on record are the machine's in the address registry as well: a
// status that was edited by hand may give one to two machines.
func (c *Claims) confirm(ctx context.Context, claim *v1alpha1.MachineClaim) (reconcile.Result, error) {
	condition, again := allocated(strings.Join(onRecord(claim), " ")), time.Duration(0)

	if err := restore(c.Addresses, c.Registry, claim); err != nil {
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, ReasonAddressConflict, err.Error()
		again = conflictRetry
	}

	if claimstatus.Says(claim, condition) {
		return reconcile.Result{RequeueAfter: again}, nil
	}

	// The addresses stay as they are: a machine may have them.
	status := map[string]any{"networkInfo": map[string]any{
		"addresses": list(onRecord(claim)), "addressNetwork": claim.Status.NetworkInfo.AddressNetwork,
	}}

	return reconcile.Result{RequeueAfter: again}, claimstatus.IgnoreGone(c.writer().Apply(ctx, claim, status, condition))
}

func allocated(addresses string) metav1.Condition {
	return metav1.Condition{
		Type: v1alpha1.ConditionAddressAllocated, Status: metav1.ConditionTrue, Reason: "Allocated", Message: addresses,
	}
}

func list(in []string) []any {
	out := make([]any, 0, len(in))
	for _, text := range in {
		out = append(out, text)
	}

	return out
}

// release frees the addresses of a claim that is being deleted, once its machine is gone
// and it is on record that it has none: a rebuild never finds them with two machines.
func (c *Claims) release(ctx context.Context, claim *v1alpha1.MachineClaim) error {
	owner := Owner(claim)

	if len(c.Addresses.Of(owner)) == 0 && len(onRecord(claim)) == 0 {
		c.Addresses.Release(owner) // it may have waited for one

		return nil
	}

	if !meta.IsStatusConditionTrue(claim.Status.Conditions, v1alpha1.ConditionVMCleanedUp) {
		return nil
	}

	// A write that seemed lost may have put addresses on record that this copy lacks: what is
	// applied takes them away all the same.
	err := c.writer().Apply(ctx, claim, map[string]any{})
	if err != nil {
		return claimstatus.IgnoreGone(err) // forget sees to a claim that is gone
	}

	c.Addresses.Release(owner)

	return nil
}

// forget frees what the address registry has for claims whose object is gone: the finalizer has seen
// to it that their machines are, too.
func (c *Claims) forget(ctx context.Context, name types.NamespacedName) error {
	owners := c.Addresses.Owners(ownerPrefix(name))

	// The cache may not have a new claim of the name yet.
	var claim v1alpha1.MachineClaim

	err := c.Live.Get(ctx, name, &claim)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read claim %s: %w", name, err)
	}

	for _, owner := range owners {
		if owner != Owner(&claim) {
			c.Addresses.Release(owner)
		}
	}

	return nil
}

// Owner is a claim's machine in the address registry.
func Owner(claim *v1alpha1.MachineClaim) string {
	return ownerPrefix(client.ObjectKeyFromObject(claim)) + string(claim.UID)
}

// ownerPrefix is what the owners begin with that were claims of this name. No
// KubevirtMachine's begins so.
func ownerPrefix(name types.NamespacedName) string { return kindClaim + " " + name.String() + "/" }
