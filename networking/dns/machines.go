// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor/tenancy"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/networking/claimstatus"
)

// FieldOwner is the field manager of the condition DNSRegistered.
const FieldOwner = "hyperfleet-dns"

// indexMachine is the name of the index of registrations by KIND/NAMESPACE/NAME of the machine's object.
const indexMachine = "spec.claim"

// MachineReconciler creates and deletes the DNSRegistrations of the machines of one kind, and reports the
// result in a condition of their objects. It adds no finalizer, so it never delays the deletion of an
// object.
type MachineReconciler struct {
	Client client.Client
	// APIReader reads from the API server, not from a cache.
	APIReader client.Reader
	Clock     clock.PassiveClock

	kind string
	// newObject returns an empty object of the kind.
	newObject func() claimstatus.Machine
	// decide returns the intent for an existing machine from the machine and its cluster.
	decide func(ctx context.Context, machine claimstatus.Machine) (registrationIntent, error)
}

// registrationIntent says what to do with a machine's registration.
type registrationIntent struct {
	// shouldRegister is true if the machine must have a registration with spec.
	shouldRegister bool
	spec           v1alpha1.DNSRegistrationSpec
	// shouldKeep is true if an existing registration must stay unchanged.
	shouldKeep bool
	// hasEnded is true if the machine is deleted or is about to be deleted.
	hasEnded bool
	// reason and message say why the machine cannot be registered.
	reason, message string
}

// checkTenancy returns the intent, unless the name is too long or the cluster does not allow it for the machine's namespace.
// In this case it returns an intent with a reason, which keeps an existing registration unchanged. The
// check is needed because a tenant can write any name into a template, a pool or a status of its namespace.
func (w registrationIntent) checkTenancy(
	ctx context.Context, apiReader client.Reader, cluster *v1alpha1.HypervisorCluster,
) (registrationIntent, error) {
	if !w.shouldRegister {
		return w, nil
	}

	// The API server would reject the registration. The names of a host and of its domain can be valid each.
	if n := len(w.spec.FQDN); n > maxName {
		return registrationIntent{shouldKeep: true, reason: "NameTooLong", message: fmt.Sprintf(
			"the name %.60s... has %d characters, and a DNS name at most %d: shorten dns.domain", w.spec.FQDN, n, maxName)}, nil
	}

	namespace := w.spec.Claim.Namespace

	entry, err := tenancy.FindEntry(cluster, namespace, tenancy.NewLabelsFunc(ctx, apiReader, namespace))
	if err == nil {
		err = tenancy.CheckDNSName(entry, cluster.Name, namespace, w.spec.FQDN)
	}

	switch {
	case err == nil:
		return w, nil
	case errclass.ClassOf(err) == errclass.Configuration:
		return registrationIntent{shouldKeep: true, reason: errclass.ReasonOf(err, tenancy.ReasonDomain), message: err.Error()}, nil
	default:
		return registrationIntent{}, err
	}
}

// indexRegistrations adds the index indexMachine to the manager's cache.
func indexRegistrations(ctx context.Context, mgr ctrl.Manager) error {
	err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.DNSRegistration{}, indexMachine, func(obj client.Object) []string {
		if reg, ok := obj.(*v1alpha1.DNSRegistration); ok {
			return []string{machineKey(claimstatus.KindOf(reg), reg.Spec.Claim.Namespace, reg.Spec.Claim.Name)}
		}

		return nil
	})
	if err != nil {
		return fmt.Errorf("index DNSRegistrations by machine: %w", err)
	}

	return nil
}

func machineKey(kind, namespace, name string) string { return kind + "/" + namespace + "/" + name }

// Reconcile creates, updates or deletes the registration of one machine.
func (m *MachineReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	machine := m.newObject()

	err := m.Client.Get(ctx, req.NamespacedName, machine)
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("get %s %s: %w", m.kind, req.NamespacedName, err)
	}

	var (
		intent    registrationIntent
		isDeleted = err != nil // only NotFound is left
	)

	if !isDeleted {
		if intent, err = m.decide(ctx, machine); err != nil {
			return reconcile.Result{}, err
		}
	}

	kept, err := m.deleteUnwanted(ctx, req, machine, intent)
	if err != nil || isDeleted {
		return reconcile.Result{}, err
	}

	return reconcile.Result{}, m.ensureRegistration(ctx, machine, intent, kept)
}

// deleteUnwanted deletes the registrations that the machine must not have, and those of earlier machines
// with its name. It returns the registration that stays, and nil if there is none.
func (m *MachineReconciler) deleteUnwanted(
	ctx context.Context, req reconcile.Request, machine claimstatus.Machine, intent registrationIntent,
) (*v1alpha1.DNSRegistration, error) {
	var list v1alpha1.DNSRegistrationList

	err := m.Client.List(ctx, &list, client.MatchingFields{indexMachine: machineKey(m.kind, req.Namespace, req.Name)})
	if err != nil {
		return nil, fmt.Errorf("list DNSRegistrations of %s %s: %w", m.kind, req.NamespacedName, err)
	}

	var kept *v1alpha1.DNSRegistration

	for i := range list.Items {
		reg := &list.Items[i]
		if reg.Spec.Claim.UID == string(machine.GetUID()) && intent.canKeep(reg) {
			kept = reg

			continue
		}

		if !reg.DeletionTimestamp.IsZero() {
			continue
		}

		// Do not delete a new registration with the same name.
		err := m.Client.Delete(ctx, reg, client.Preconditions{UID: &reg.UID})
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("delete DNSRegistration %s: %w", reg.Name, err)
		}
	}

	return kept, nil
}

// canKeep returns whether a registration of the machine can stay. A registration at another cluster cannot
// stay. It is recreated after its records are deleted there.
func (w registrationIntent) canKeep(reg *v1alpha1.DNSRegistration) bool {
	return w.shouldKeep || (w.shouldRegister && reg.Spec.HypervisorCluster == w.spec.HypervisorCluster)
}

// ensureRegistration creates or updates the registration, and reports the result in the machine's condition.
func (m *MachineReconciler) ensureRegistration(
	ctx context.Context, machine claimstatus.Machine, intent registrationIntent, kept *v1alpha1.DNSRegistration,
) error {
	writer := &claimstatus.Writer{
		Client: m.Client, Clock: m.Clock, Owner: FieldOwner, Types: []string{v1alpha1.ConditionDNSRegistered},
	}

	switch {
	case intent.shouldRegister && kept == nil:
		if err := m.create(ctx, machine, intent); err != nil {
			return err
		}

		return writer.Report(ctx, machine, metav1.ConditionUnknown, "Pending", "the DNS records are being written")
	case intent.shouldRegister && !isSameSpec(kept.Spec, intent.spec):
		changed := kept.DeepCopy()
		changed.Spec = intent.spec

		if err := m.Client.Update(ctx, changed); err != nil {
			return fmt.Errorf("update DNSRegistration %s: %w", kept.Name, err)
		}

		return nil
	case kept != nil:
		return reportRegistration(ctx, writer, machine, kept)
	case intent.reason != "":
		return writer.Report(ctx, machine, metav1.ConditionFalse, intent.reason, intent.message)
	case intent.hasEnded && meta.FindStatusCondition(*machine.StatusConditions(), v1alpha1.ConditionDNSRegistered) != nil:
		return writer.Report(ctx, machine, metav1.ConditionFalse, "Removed", "the DNS records are deleted or are being deleted")
	default:
		return writer.Clear(ctx, machine)
	}
}

// create creates the registration, unless the machine at the API server is deleted or is being deleted.
// This check is needed because the deletion of a machine waits only until it finds no registration.
func (m *MachineReconciler) create(ctx context.Context, machine claimstatus.Machine, intent registrationIntent) error {
	live := m.newObject()

	err := m.APIReader.Get(ctx, client.ObjectKeyFromObject(machine), live)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("get %s %s: %w", m.kind, client.ObjectKeyFromObject(machine), err)
	}

	// A missing object has an empty UID.
	if live.GetUID() != machine.GetUID() || live.GetDeletionTimestamp() != nil {
		return nil // a watch event for the deletion follows
	}

	reg := &v1alpha1.DNSRegistration{ObjectMeta: metav1.ObjectMeta{Name: RegistrationName(machine)}, Spec: intent.spec}

	err = m.Client.Create(ctx, reg)
	if client.IgnoreAlreadyExists(err) != nil {
		return fmt.Errorf("create DNSRegistration %s: %w", reg.Name, err)
	}

	return nil
}

// reportRegistration copies the result of the registration into the machine's condition.
func reportRegistration(
	ctx context.Context, writer *claimstatus.Writer, machine claimstatus.Machine, reg *v1alpha1.DNSRegistration,
) error {
	ready := meta.FindStatusCondition(reg.Status.Conditions, step.Ready)
	if ready == nil || ready.ObservedGeneration != reg.Generation {
		return writer.Report(ctx, machine, metav1.ConditionUnknown, "Pending", "the DNS records are being written")
	}

	source := ready
	if ready.Status == metav1.ConditionTrue {
		if registered := meta.FindStatusCondition(reg.Status.Conditions, "Registered"); registered != nil {
			source = registered
		}
	}

	return writer.Report(ctx, machine, ready.Status, source.Reason, source.Message)
}

// machineRef returns the reference from a registration to its machine. The machine is in the field claim, also if
// it is not a MachineClaim.
func machineRef(kind string, machine client.Object) v1alpha1.DNSRegistrationClaim {
	return v1alpha1.DNSRegistrationClaim{
		Kind: kind, Namespace: machine.GetNamespace(), Name: machine.GetName(), UID: string(machine.GetUID()),
	}
}

// isSameSpec returns whether two specs have the same name and addresses. It ignores the order of the
// addresses.
func isSameSpec(a, b v1alpha1.DNSRegistrationSpec) bool {
	return a.FQDN == b.FQDN && slices.Equal(slices.Sorted(slices.Values(a.Addresses)), slices.Sorted(slices.Values(b.Addresses)))
}

// RegistrationName returns the name of a machine's DNSRegistration. It contains the namespace, because
// registrations are cluster-scoped, and a part of the UID, so that a recreated machine gets another
// registration. Registrations are cluster-scoped so that users of the machine's namespace cannot change
// them, and an unreachable DNS server does not block the deletion of that namespace.
func RegistrationName(machine client.Object) string {
	const uidLength = 8

	uid := string(machine.GetUID())

	return machine.GetNamespace() + "." + machine.GetName() + "." + uid[:min(len(uid), uidLength)]
}
