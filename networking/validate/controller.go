// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor/tenancy"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/metrics"
	"github.com/hyperfleet/hyperfleet/networking/claimstatus"
	"github.com/hyperfleet/hyperfleet/networking/dns"
)

const (
	// FieldOwner of the condition NetworkValidated.
	FieldOwner = "hyperfleet-validate"
	// concurrency is high because passes mostly wait for answers that don't come.
	concurrency = 32

	dnsPort = "53"
	sshPort = "22"
)

// Options are what validation needs of its process.
type Options struct {
	// Clock. Default: the real one.
	Clock clock.PassiveClock
	// Calls notes look-ups and tests; may be nil.
	Calls *metrics.Calls
	// DNSPort and SSHPort are other ports than 53 and 22, for tests.
	DNSPort, SSHPort string
}

// Reconciler validates the machines of one kind.
type Reconciler struct {
	client client.Client
	// live reads from the API server itself.
	live  client.Reader
	clock clock.PassiveClock
	calls *metrics.Calls
	ports ports
	// find reads a machine; nil if there is none of the name.
	find func(ctx context.Context, reader client.Reader, key client.ObjectKey) (*subject, error)

	mu     sync.Mutex
	states map[client.ObjectKey]state
}

// subject is a machine that is looked at.
type subject struct {
	// object of the machine.
	object claimstatus.Machine
	// cluster whose settings count; nil leaves the machine as it is: what was found of it is
	// left to be read.
	cluster *v1alpha1.HypervisorCluster
	// off says that its settings, whichever they were, do not count any more.
	off bool
	// name, and the domain that it should be in.
	fqdn, domain string
	// addrs are the machine's addresses; all are looked at.
	addrs []netip.Addr
	// noAddress says why there is none.
	noAddress string
	// ready is when the machine became Ready.
	ready time.Time
}

// state is what is known of one machine. It is kept in memory: an operator that starts
// looks at every machine anew.
type state struct {
	// about is the machine and the settings that it is about.
	about        string
	dns, network track
}

// SetupWithManager adds the validation of machines to a manager.
func SetupWithManager(mgr ctrl.Manager, opts Options) error {
	if opts.Clock == nil {
		opts.Clock = clock.RealClock{}
	}

	if opts.DNSPort == "" {
		opts.DNSPort = dnsPort
	}

	if opts.SSHPort == "" {
		opts.SSHPort = sshPort
	}

	if err := addClaims(mgr, opts); err != nil {
		return err
	}

	return addKubevirtMachines(mgr, opts)
}

func newReconciler(mgr ctrl.Manager, opts Options) *Reconciler {
	return &Reconciler{
		client: mgr.GetClient(), live: mgr.GetAPIReader(), clock: opts.Clock, calls: opts.Calls,
		ports: ports{dns: opts.DNSPort, ssh: opts.SSHPort}, states: map[client.ObjectKey]state{},
	}
}

// Reconcile makes the checks of one machine that are due, and reports them.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	machine, err := r.find(ctx, r.client, req.NamespacedName)

	switch {
	case err != nil:
		return reconcile.Result{}, err
	case machine == nil:
		r.forget(req.NamespacedName)

		return reconcile.Result{}, nil
	case machine.off:
		r.forget(req.NamespacedName)

		return reconcile.Result{}, r.writer().Clear(ctx, machine.object)
	case machine.cluster == nil:
		return reconcile.Result{}, nil
	}

	return r.validate(ctx, machine)
}

func (r *Reconciler) writer() *claimstatus.Writer {
	return &claimstatus.Writer{
		Client: r.client, Clock: r.clock, Owner: FieldOwner, Type: v1alpha1.ConditionNetworkValidated,
	}
}

// validate makes one pass over a machine that is Ready.
func (r *Reconciler) validate(ctx context.Context, m *subject) (reconcile.Result, error) {
	key := client.ObjectKeyFromObject(m.object)
	lookUps, looks := dnsRhythm(m.cluster.Spec.DNS)
	tests, testing := networkRhythm(m.cluster.Spec)

	if !looks && !testing {
		r.forget(key)

		return reconcile.Result{}, r.writer().Clear(ctx, m.object)
	}

	if refused, err := r.refused(ctx, m); refused || err != nil {
		r.forget(key)

		return reconcile.Result{}, err
	}

	if len(m.addrs) == 0 {
		return reconcile.Result{}, r.writer().Report(ctx, m.object, metav1.ConditionUnknown, "NoAddress", m.noAddress)
	}

	if looks {
		waits, err := r.registering(ctx, m)
		if err != nil {
			return reconcile.Result{}, err
		}

		if waits {
			return reconcile.Result{}, r.writer().Report(ctx, m.object, metav1.ConditionUnknown, "WaitingForRegistration",
				"the machine's DNS records are not written yet: see the condition "+v1alpha1.ConditionDNSRegistered)
		}
	}

	now := r.clock.Now()
	known := r.state(m, lookUps, tests)

	if looks && known.dns.due(now) {
		findings := r.run(ctx, "dns-lookup", dnsChecks(m.cluster.Spec.DNS, m.domain, r.ports), m)
		known.dns = known.dns.after(lookUps, r.clock.Now(), findings)
	}

	if testing && known.network.due(now) {
		findings := r.run(ctx, "machine", networkChecks(m.cluster.Spec.Network.Validation, r.ports), m)
		known.network = known.network.after(tests, r.clock.Now(), findings)
	}

	r.remember(key, known)

	return r.report(ctx, m, known, looks, testing)
}

// refused tells of a machine that its cluster does not let its namespace have: what a status or a
// node pool says is the namespace's own word, and nobody is asked or called for it.
func (r *Reconciler) refused(ctx context.Context, m *subject) (bool, error) {
	namespace := m.object.GetNamespace()

	entry, err := tenancy.Find(m.cluster, namespace, tenancy.LabelsOf(ctx, r.live, namespace))
	if err == nil && m.fqdn != "" {
		err = tenancy.CheckName(entry, m.cluster.Name, namespace, m.fqdn)
	}

	if errclass.Of(err) != errclass.Configuration {
		return false, err
	}

	reason := errclass.Reason(err, tenancy.ReasonNamespace)

	return true, r.writer().Report(ctx, m.object, metav1.ConditionUnknown, reason, err.Error())
}

// registering says whether the machine's records are still to be written: what is asked
// for too early, name servers remember as not being there.
func (r *Reconciler) registering(ctx context.Context, m *subject) (bool, error) {
	if !m.cluster.Spec.DNS.RegisterVMs {
		return false, nil
	}

	var reg v1alpha1.DNSRegistration
	if err := r.client.Get(ctx, client.ObjectKey{Name: dns.NameFor(m.object)}, &reg); err != nil {
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	}

	return reg.Status.RegisteredAt == nil, nil
}

// state gives what is known of the machine, or begins anew where it or its settings have
// changed.
func (r *Reconciler) state(m *subject, lookUps, tests rhythm) state {
	about := fmt.Sprintf("%s %s %s %s %s/%d", m.object.GetUID(), m.fqdn, m.domain, m.addrs, m.cluster.UID, m.cluster.Generation)

	r.mu.Lock()
	defer r.mu.Unlock()

	if known, ok := r.states[client.ObjectKeyFromObject(m.object)]; ok && known.about == about {
		return known
	}

	ready := m.ready
	if ready.IsZero() {
		ready = r.clock.Now()
	}

	return state{about: about, dns: begin(lookUps, ready), network: begin(tests, ready)}
}

func (r *Reconciler) remember(key client.ObjectKey, known state) {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.states[key] = known
}

func (r *Reconciler) forget(key client.ObjectKey) {
	r.mu.Lock()
	defer r.mu.Unlock()

	delete(r.states, key)
}

// run makes checks of all of the machine's addresses at the same time; each has its own
// time limit.
func (r *Reconciler) run(ctx context.Context, system string, checks []check, m *subject) []finding {
	findings := make([]finding, len(m.addrs)*len(checks))

	var group sync.WaitGroup

	for i, addr := range m.addrs {
		for j, c := range checks {
			group.Go(func() {
				start := r.clock.Now()
				found := c.run(ctx, target{fqdn: m.fqdn, addr: addr})

				if len(m.addrs) > 1 {
					found.what += " " + addr.String()
				}

				findings[i*len(checks)+j] = found

				if r.calls != nil {
					r.calls.Observe(system, c.name, r.clock.Since(start), found.err())
				}
			})
		}
	}

	group.Wait()

	return findings
}

// report writes the condition and says when to come back.
func (r *Reconciler) report(
	ctx context.Context, m *subject, known state, looks, testing bool,
) (reconcile.Result, error) {
	var (
		findings []finding
		next     time.Time
	)

	for _, set := range []struct {
		on bool
		track
	}{{looks, known.dns}, {testing, known.network}} {
		if !set.on {
			continue
		}

		findings = slices.Concat(findings, set.findings)
		if !set.next.IsZero() && (next.IsZero() || set.next.Before(next)) {
			next = set.next
		}
	}

	result := reconcile.Result{}
	if !next.IsZero() {
		result.RequeueAfter = max(next.Sub(r.clock.Now()), time.Millisecond)
	}

	if len(findings) == 0 {
		return result, r.writer().Report(ctx, m.object, metav1.ConditionUnknown, "Pending", "nothing has been checked yet")
	}

	status, reason, message := verdict(findings, m)

	return result, r.writer().Report(ctx, m.object, status, reason, message)
}
