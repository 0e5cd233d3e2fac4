// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/networking/claimstatus"
)

// FieldOwner of the condition DNSRegistered.
const FieldOwner = "hyperfleet-dns"

// indexClaim finds registrations by NAMESPACE/NAME of their claim.
const indexClaim = "spec.claim"

// Claims makes and deletes the DNSRegistrations of MachineClaims, and reports on the
// claims. It puts nothing on a claim that would keep it from going.
type Claims struct {
	Client client.Client
	Clock  clock.PassiveClock
}

//+kubebuilder:rbac:groups=hyperfleet.io,resources=machineclaims/status,verbs=patch

// SetupWithManager adds the controller to a manager.
func (c *Claims) SetupWithManager(ctx context.Context, mgr ctrl.Manager) error {
	err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.DNSRegistration{}, indexClaim, func(obj client.Object) []string {
		if reg, ok := obj.(*v1alpha1.DNSRegistration); ok {
			return []string{reg.Spec.Claim.Namespace + "/" + reg.Spec.Claim.Name}
		}

		return nil
	})
	if err != nil {
		return fmt.Errorf("index DNS registrations by claim: %w", err)
	}

	err = ctrl.NewControllerManagedBy(mgr).
		Named("dnsclaim").
		For(&v1alpha1.MachineClaim{}).
		Watches(&v1alpha1.DNSRegistration{}, handler.EnqueueRequestsFromMapFunc(claimstatus.OfRegistration)).
		Watches(&v1alpha1.HypervisorCluster{}, handler.EnqueueRequestsFromMapFunc(claimstatus.OfCluster(c.Client)),
			builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrency}).
		Complete(c)
	if err != nil {
		return fmt.Errorf("add controller dnsclaim: %w", err)
	}

	return nil
}

// Reconcile sees to one claim's registration.
func (c *Claims) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var claim v1alpha1.MachineClaim

	err := c.Client.Get(ctx, req.NamespacedName, &claim)
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("read machine claim %s: %w", req.NamespacedName, err)
	}

	gone := err != nil

	wish, err := c.wish(ctx, &claim, gone)
	if err != nil {
		return reconcile.Result{}, err
	}

	found, err := c.tidy(ctx, req.String(), &claim, wish)
	if err != nil || gone {
		return reconcile.Result{}, err
	}

	return reconcile.Result{}, c.see(ctx, &claim, wish, found)
}

// wish is what is to become of a claim's registration.
type wish struct {
	// want says that there is to be one, with spec.
	want bool
	spec v1alpha1.DNSRegistrationSpec
	// keep says that one that is there stays as it is.
	keep bool
	// reason and message tell of what is missing for one.
	reason, message string
}

// wish decides on what the claim and its cluster say.
func (c *Claims) wish(ctx context.Context, claim *v1alpha1.MachineClaim, gone bool) (wish, error) {
	ref := claim.Status.VMRef
	if gone || ref == nil || ended(claim) {
		return wish{}, nil
	}

	var cluster v1alpha1.HypervisorCluster

	err := c.Client.Get(ctx, client.ObjectKey{Name: ref.HypervisorCluster}, &cluster)
	if apierrors.IsNotFound(err) {
		return wish{keep: true}, nil
	}

	if err != nil {
		return wish{}, fmt.Errorf("read HypervisorCluster %s: %w", ref.HypervisorCluster, err)
	}

	return decide(claim, &cluster), nil
}

// ended says whether the machine is, or is about to be, no more.
func ended(claim *v1alpha1.MachineClaim) bool {
	phase := claim.Status.Phase

	return claim.Status.EndReason != "" || phase == v1alpha1.MachineClaimTerminating || phase == v1alpha1.MachineClaimFailed
}

// decide says what is to become of the registration of a machine that is there.
func decide(claim *v1alpha1.MachineClaim, cluster *v1alpha1.HypervisorCluster) wish {
	settings := cluster.Spec.DNS
	if settings == nil || !settings.RegisterVMs || settings.DNSProvider == nil {
		return wish{}
	}

	info := claim.Status.NetworkInfo

	switch {
	case claim.Status.Phase != v1alpha1.MachineClaimReady:
		return wish{keep: true}
	case info == nil || info.IPAddress == "":
		return wish{
			keep: true, reason: "NoAddress", message: "the machine's address is not known yet: its guest agent reports it",
		}
	case !strings.Contains(info.FQDN, "."):
		return wish{
			keep: true, reason: "NoDomain",
			message: "the machine was made without a domain: set dns.domain of the HypervisorCluster",
		}
	}

	return wish{want: true, spec: v1alpha1.DNSRegistrationSpec{
		Claim:             v1alpha1.DNSRegistrationClaim{Namespace: claim.Namespace, Name: claim.Name, UID: string(claim.UID)},
		HypervisorCluster: cluster.Name,
		FQDN:              canonical(info.FQDN),
		Addresses:         []string{info.IPAddress},
	}}
}

// tidy deletes the claim's registrations that are not to be, those of earlier claims of
// its name among them, and gives the one that is.
func (c *Claims) tidy(
	ctx context.Context, key string, claim *v1alpha1.MachineClaim, wish wish,
) (*v1alpha1.DNSRegistration, error) {
	var list v1alpha1.DNSRegistrationList
	if err := c.Client.List(ctx, &list, client.MatchingFields{indexClaim: key}); err != nil {
		return nil, fmt.Errorf("list DNS registrations of claim %s: %w", key, err)
	}

	var found *v1alpha1.DNSRegistration

	for i := range list.Items {
		reg := &list.Items[i]
		if reg.Spec.Claim.UID == string(claim.UID) && (wish.want || wish.keep) {
			found = reg

			continue
		}

		if !reg.DeletionTimestamp.IsZero() {
			continue
		}

		// A new one of the same name is not meant.
		err := c.Client.Delete(ctx, reg, client.Preconditions{UID: &reg.UID})
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("delete DNS registration %s: %w", reg.Name, err)
		}
	}

	return found, nil
}

// see makes or changes the registration, and reports on the claim.
func (c *Claims) see(ctx context.Context, claim *v1alpha1.MachineClaim, wish wish, found *v1alpha1.DNSRegistration) error {
	writer := &claimstatus.Writer{
		Client: c.Client, Clock: c.Clock, Owner: FieldOwner, Type: v1alpha1.ConditionDNSRegistered,
	}

	switch {
	case wish.want && found == nil:
		reg := &v1alpha1.DNSRegistration{ObjectMeta: metav1.ObjectMeta{Name: NameFor(claim)}, Spec: wish.spec}
		if err := c.Client.Create(ctx, reg); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create DNS registration %s: %w", reg.Name, err)
		}

		return writer.Report(ctx, claim, metav1.ConditionUnknown, "Pending", "the records are being written")
	case wish.want && !same(found.Spec, wish.spec):
		changed := found.DeepCopy()
		changed.Spec = wish.spec

		if err := c.Client.Update(ctx, changed); err != nil {
			return fmt.Errorf("change DNS registration %s: %w", found.Name, err)
		}

		return nil
	case found != nil:
		return c.mirror(ctx, writer, claim, found)
	case wish.reason != "":
		return writer.Report(ctx, claim, metav1.ConditionFalse, wish.reason, wish.message)
	case meta.FindStatusCondition(claim.Status.Conditions, v1alpha1.ConditionDNSRegistered) != nil && ended(claim):
		return writer.Report(ctx, claim, metav1.ConditionFalse, "Removed", "the machine's records are being removed, or are gone")
	default:
		return writer.Clear(ctx, claim)
	}
}

// mirror tells on the claim what the registration says.
func (c *Claims) mirror(
	ctx context.Context, writer *claimstatus.Writer, claim *v1alpha1.MachineClaim, reg *v1alpha1.DNSRegistration,
) error {
	ready := meta.FindStatusCondition(reg.Status.Conditions, step.Ready)
	if ready == nil || ready.ObservedGeneration != reg.Generation {
		return writer.Report(ctx, claim, metav1.ConditionUnknown, "Pending", "the records are being written")
	}

	said := ready
	if ready.Status == metav1.ConditionTrue {
		if own := meta.FindStatusCondition(reg.Status.Conditions, "Registered"); own != nil {
			said = own
		}
	}

	return writer.Report(ctx, claim, ready.Status, said.Reason, said.Message)
}

// same compares what a registration is about; the order of addresses is of no account.
func same(a, b v1alpha1.DNSRegistrationSpec) bool {
	return a.FQDN == b.FQDN && slices.Equal(slices.Sorted(slices.Values(a.Addresses)), slices.Sorted(slices.Values(b.Addresses)))
}

// NameFor is the name of a claim's registration. Registrations have no namespace: whoever
// works in the claim's may not change them, and a dead DNS server does not keep that
// namespace from going.
func NameFor(claim *v1alpha1.MachineClaim) string {
	const enough = 8

	uid := string(claim.UID)

	return claim.Namespace + "." + claim.Name + "." + uid[:min(len(uid), enough)]
}
