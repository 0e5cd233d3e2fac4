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

// FieldOwner of the condition DNSRegistered.
const FieldOwner = "hyperfleet-dns"

// indexMachine finds registrations by KIND/NAMESPACE/NAME of their machine's object.
const indexMachine = "spec.claim"

// Machines makes and deletes the DNSRegistrations of the machines of one kind, and reports
// on their objects. It puts nothing on an object that would keep it from going.
type Machines struct {
	Client client.Client
	// Live reads from the API server itself.
	Live  client.Reader
	Clock clock.PassiveClock

	kind string
	// fresh is an empty object of the kind.
	fresh func() claimstatus.Machine
	// wish decides on what a machine that is there, and its cluster, say.
	wish func(ctx context.Context, machine claimstatus.Machine) (wish, error)
}

// wish is what is to become of a machine's registration.
type wish struct {
	// want says that there is to be one, with spec.
	want bool
	spec v1alpha1.DNSRegistrationSpec
	// keep says that one that is there stays as it is.
	keep bool
	// ended says that the machine is, or is about to be, no more.
	ended bool
	// reason and message tell of what is missing for one.
	reason, message string
}

// within keeps a name out of DNS that the cluster does not let the machine's namespace have: what
// a template, a pool or a status says is the namespace's own word. A registration that is there
// stays as it is.
func (w wish) within(ctx context.Context, live client.Reader, cluster *v1alpha1.HypervisorCluster) (wish, error) {
	if !w.want {
		return w, nil
	}

	namespace := w.spec.Claim.Namespace

	entry, err := tenancy.Find(cluster, namespace, tenancy.LabelsOf(ctx, live, namespace))
	if err == nil {
		err = tenancy.CheckName(entry, cluster.Name, namespace, w.spec.FQDN)
	}

	switch {
	case err == nil:
		return w, nil
	case errclass.Of(err) == errclass.Configuration:
		return wish{keep: true, reason: errclass.Reason(err, tenancy.ReasonDomain), message: err.Error()}, nil
	default:
		return wish{}, err
	}
}

// index has the manager's cache find registrations by their machine.
func index(ctx context.Context, mgr ctrl.Manager) error {
	err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.DNSRegistration{}, indexMachine, func(obj client.Object) []string {
		if reg, ok := obj.(*v1alpha1.DNSRegistration); ok {
			return []string{keyOf(claimstatus.KindOf(reg), reg.Spec.Claim.Namespace, reg.Spec.Claim.Name)}
		}

		return nil
	})
	if err != nil {
		return fmt.Errorf("index DNS registrations by machine: %w", err)
	}

	return nil
}

func keyOf(kind, namespace, name string) string { return kind + "/" + namespace + "/" + name }

// Reconcile sees to one machine's registration.
func (m *Machines) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	machine := m.fresh()

	err := m.Client.Get(ctx, req.NamespacedName, machine)
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("read %s %s: %w", m.kind, req.NamespacedName, err)
	}

	var (
		wish wish
		gone = err != nil
	)

	if !gone {
		if wish, err = m.wish(ctx, machine); err != nil {
			return reconcile.Result{}, err
		}
	}

	found, err := m.tidy(ctx, req, machine, wish)
	if err != nil || gone {
		return reconcile.Result{}, err
	}

	return reconcile.Result{}, m.see(ctx, machine, wish, found)
}

// tidy deletes the machine's registrations that are not to be, those of earlier machines of
// its name among them, and gives the one that is.
func (m *Machines) tidy(
	ctx context.Context, req reconcile.Request, machine claimstatus.Machine, wish wish,
) (*v1alpha1.DNSRegistration, error) {
	var list v1alpha1.DNSRegistrationList

	err := m.Client.List(ctx, &list, client.MatchingFields{indexMachine: keyOf(m.kind, req.Namespace, req.Name)})
	if err != nil {
		return nil, fmt.Errorf("list DNS registrations of %s %s: %w", m.kind, req.NamespacedName, err)
	}

	var found *v1alpha1.DNSRegistration

	for i := range list.Items {
		reg := &list.Items[i]
		if reg.Spec.Claim.UID == string(machine.GetUID()) && wish.allows(reg) {
			found = reg

			continue
		}

		if !reg.DeletionTimestamp.IsZero() {
			continue
		}

		// A new one of the same name is not meant.
		err := m.Client.Delete(ctx, reg, client.Preconditions{UID: &reg.UID})
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("delete DNS registration %s: %w", reg.Name, err)
		}
	}

	return found, nil
}

// allows says whether a registration of the machine may stay. One at another cluster goes,
// and is made anew once its records are gone from there.
func (w wish) allows(reg *v1alpha1.DNSRegistration) bool {
	return w.keep || (w.want && reg.Spec.HypervisorCluster == w.spec.HypervisorCluster)
}

// see makes or changes the registration, and reports on the machine.
func (m *Machines) see(
	ctx context.Context, machine claimstatus.Machine, wish wish, found *v1alpha1.DNSRegistration,
) error {
	writer := &claimstatus.Writer{
		Client: m.Client, Clock: m.Clock, Owner: FieldOwner, Type: v1alpha1.ConditionDNSRegistered,
	}

	switch {
	case wish.want && found == nil:
		if err := m.create(ctx, machine, wish); err != nil {
			return err
		}

		return writer.Report(ctx, machine, metav1.ConditionUnknown, "Pending", "the records are being written")
	case wish.want && !same(found.Spec, wish.spec):
		changed := found.DeepCopy()
		changed.Spec = wish.spec

		if err := m.Client.Update(ctx, changed); err != nil {
			return fmt.Errorf("change DNS registration %s: %w", found.Name, err)
		}

		return nil
	case found != nil:
		return mirror(ctx, writer, machine, found)
	case wish.reason != "":
		return writer.Report(ctx, machine, metav1.ConditionFalse, wish.reason, wish.message)
	case wish.ended && meta.FindStatusCondition(*machine.StatusConditions(), v1alpha1.ConditionDNSRegistered) != nil:
		return writer.Report(ctx, machine, metav1.ConditionFalse, "Removed", "the machine's records are being removed, or are gone")
	default:
		return writer.Clear(ctx, machine)
	}
}

// create makes the registration, unless the machine is going by the API server's own word:
// whoever waits for its records to be gone has seen that there is no registration.
func (m *Machines) create(ctx context.Context, machine claimstatus.Machine, wish wish) error {
	live := m.fresh()

	err := m.Live.Get(ctx, client.ObjectKeyFromObject(machine), live)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read %s %s: %w", m.kind, client.ObjectKeyFromObject(machine), err)
	}

	// One that is not there has no uid.
	if live.GetUID() != machine.GetUID() || live.GetDeletionTimestamp() != nil {
		return nil // its deletion is heard of as well
	}

	reg := &v1alpha1.DNSRegistration{ObjectMeta: metav1.ObjectMeta{Name: NameFor(machine)}, Spec: wish.spec}

	err = m.Client.Create(ctx, reg)
	if client.IgnoreAlreadyExists(err) != nil {
		return fmt.Errorf("create DNS registration %s: %w", reg.Name, err)
	}

	return nil
}

// mirror tells on the machine what the registration says.
func mirror(
	ctx context.Context, writer *claimstatus.Writer, machine claimstatus.Machine, reg *v1alpha1.DNSRegistration,
) error {
	ready := meta.FindStatusCondition(reg.Status.Conditions, step.Ready)
	if ready == nil || ready.ObservedGeneration != reg.Generation {
		return writer.Report(ctx, machine, metav1.ConditionUnknown, "Pending", "the records are being written")
	}

	said := ready
	if ready.Status == metav1.ConditionTrue {
		if own := meta.FindStatusCondition(reg.Status.Conditions, "Registered"); own != nil {
			said = own
		}
	}

	return writer.Report(ctx, machine, ready.Status, said.Reason, said.Message)
}

// machineRef is what a registration says of its machine.
func machineRef(kind string, machine client.Object) v1alpha1.DNSRegistrationClaim {
	return v1alpha1.DNSRegistrationClaim{
		Kind: kind, Namespace: machine.GetNamespace(), Name: machine.GetName(), UID: string(machine.GetUID()),
	}
}

// same compares what a registration is about; the order of addresses is of no account.
func same(a, b v1alpha1.DNSRegistrationSpec) bool {
	return a.FQDN == b.FQDN && slices.Equal(slices.Sorted(slices.Values(a.Addresses)), slices.Sorted(slices.Values(b.Addresses)))
}

// NameFor is the name of a machine's registration. Registrations have no namespace: whoever
// works in the machine's may not change them, and a dead DNS server does not keep that
// namespace from going on account of them.
func NameFor(machine client.Object) string {
	const enough = 8

	uid := string(machine.GetUID())

	return machine.GetNamespace() + "." + machine.GetName() + "." + uid[:min(len(uid), enough)]
}
