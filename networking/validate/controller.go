// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"cmp"
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
	// FieldOwner is the field manager of the condition NetworkValidated.
	FieldOwner = "hyperfleet-validate"
	// concurrency is high because most of the time a reconcile waits for responses that do not come.
	concurrency = 32

	dnsPort = "53"
	sshPort = "22"

	// systemLookUp and systemConnection are the values of the metric label system for DNS look-ups and for
	// connections to the machine.
	systemLookUp     = "dns-lookup"
	systemConnection = "machine"
)

// Options holds what the validation needs from its process.
type Options struct {
	// Clock defaults to the real clock.
	Clock clock.PassiveClock
	// Calls records metrics of look-ups and tests. It may be nil.
	Calls *metrics.CallMetrics
	// DNSPort and SSHPort default to 53 and 22. Tests use other ports.
	DNSPort, SSHPort string
}

func (o Options) withDefaults() Options {
	o.Clock = cmp.Or[clock.PassiveClock](o.Clock, clock.RealClock{})
	o.DNSPort, o.SSHPort = cmp.Or(o.DNSPort, dnsPort), cmp.Or(o.SSHPort, sshPort)

	return o
}

// Reconciler validates the machines of one kind.
type Reconciler struct {
	client client.Client
	// apiReader reads from the API server, not from a cache.
	apiReader client.Reader
	clock     clock.PassiveClock
	calls     *metrics.CallMetrics
	ports     ports
	// find reads a machine. It returns nil if there is no machine with this name.
	find func(ctx context.Context, reader client.Reader, key client.ObjectKey) (*subject, error)

	mu     sync.Mutex
	states map[client.ObjectKey]state
}

// subject is a machine to check.
type subject struct {
	object claimstatus.Machine
	// cluster has the settings that apply. If it is nil, the reconciler does not change the machine's
	// condition, so the last result stays readable.
	cluster *v1alpha1.HypervisorCluster
	// hasNoSettings is true if no settings apply to the machine any longer. The reconciler then removes the
	// condition.
	hasNoSettings bool
	// fqdn is the machine's name, and domain is the domain in which the name must be.
	fqdn, domain string
	// addrs are the machine's addresses. The reconciler checks all of them.
	addrs []netip.Addr
	// noAddressMessage says why the machine has no address.
	noAddressMessage string
	// readySince is the time when the machine became Ready.
	readySince time.Time
}

// state has the results for one machine. It is in memory only, so the operator checks every machine again
// after a restart.
type state struct {
	// fingerprint identifies the machine and the settings to which the results belong.
	fingerprint  string
	dns, network progress
}

// SetupWithManager adds the controllers that validate machines to a manager.
func SetupWithManager(mgr ctrl.Manager, opts Options) error {
	opts = opts.withDefaults()

	if err := addClaims(mgr, opts); err != nil {
		return err
	}

	return addKubevirtMachines(mgr, opts)
}

func newReconciler(mgr ctrl.Manager, opts Options) *Reconciler {
	return &Reconciler{
		client: mgr.GetClient(), apiReader: mgr.GetAPIReader(), clock: opts.Clock, calls: opts.Calls,
		ports: ports{dns: opts.DNSPort, ssh: opts.SSHPort}, states: map[client.ObjectKey]state{},
	}
}

// Reconcile runs the checks of one machine that are due, and reports their results.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	machine, err := r.find(ctx, r.client, req.NamespacedName)

	switch {
	case err != nil:
		return reconcile.Result{}, err
	case machine == nil:
		r.deleteState(req.NamespacedName)

		return reconcile.Result{}, nil
	case machine.hasNoSettings:
		r.deleteState(req.NamespacedName)

		return reconcile.Result{}, r.writer().Clear(ctx, machine.object)
	case machine.cluster == nil:
		return reconcile.Result{}, nil
	}

	return r.validate(ctx, machine)
}

func (r *Reconciler) writer() *claimstatus.Writer {
	return &claimstatus.Writer{
		Client: r.client, Clock: r.clock, Owner: FieldOwner, Types: []string{v1alpha1.ConditionNetworkValidated},
	}
}

// validate runs the DNS and network checks of a Ready machine that are due, and reports their results.
func (r *Reconciler) validate(ctx context.Context, m *subject) (reconcile.Result, error) {
	key := client.ObjectKeyFromObject(m.object)
	lookupSchedule, shouldLookUp := newDNSSchedule(m.cluster.Spec.DNS)
	testSchedule, shouldTest := newNetworkSchedule(m.cluster.Spec)

	if !shouldLookUp && !shouldTest {
		r.deleteState(key)

		return reconcile.Result{}, r.writer().Clear(ctx, m.object)
	}

	if isForbidden, err := r.reportForbiddenTarget(ctx, m); isForbidden || err != nil {
		r.deleteState(key)

		return reconcile.Result{}, err
	}

	if len(m.addrs) == 0 {
		return reconcile.Result{}, r.writer().Report(ctx, m.object, metav1.ConditionUnknown, "NoAddress", m.noAddressMessage)
	}

	if shouldLookUp {
		isWaiting, err := r.isAwaitingRegistration(ctx, m)
		if err != nil {
			return reconcile.Result{}, err
		}

		if isWaiting {
			return reconcile.Result{}, r.writer().Report(ctx, m.object, metav1.ConditionUnknown, "WaitingForRegistration",
				"the machine's DNS records are not written yet: see the condition "+v1alpha1.ConditionDNSRegistered)
		}
	}

	now := r.clock.Now()
	current := r.stateFor(m, lookupSchedule, testSchedule)

	if shouldLookUp && current.dns.isDue(now) {
		findings := r.runChecks(ctx, systemLookUp, newDNSChecks(m.cluster.Spec.DNS, m.domain, r.ports), m)
		current.dns = current.dns.withFindings(lookupSchedule, r.clock.Now(), findings)
	}

	if shouldTest && current.network.isDue(now) {
		findings := r.runChecks(ctx, systemConnection, newNetworkChecks(m.cluster.Spec.Network.Validation, r.ports), m)
		current.network = current.network.withFindings(testSchedule, r.clock.Now(), findings)
	}

	r.saveState(key, current)

	return r.report(ctx, m, current, shouldLookUp, shouldTest)
}

// reportForbiddenTarget reports a machine whose namespace or DNS name the cluster does not allow. isForbidden is
// true for such a machine. The caller must then not look up its name or connect to it: otherwise a tenant could make the
// operator call any address that the tenant writes into a status or a node pool.
func (r *Reconciler) reportForbiddenTarget(ctx context.Context, m *subject) (isForbidden bool, err error) {
	namespace := m.object.GetNamespace()

	entry, err := tenancy.FindEntry(m.cluster, namespace, tenancy.NewLabelsFunc(ctx, r.apiReader, namespace))
	if err == nil && m.fqdn != "" {
		err = tenancy.CheckDNSName(entry, m.cluster.Name, namespace, m.fqdn)
	}

	if errclass.ClassOf(err) != errclass.Configuration {
		return false, err
	}

	reason := errclass.ReasonOf(err, tenancy.ReasonNamespace)

	return true, r.writer().Report(ctx, m.object, metav1.ConditionUnknown, reason, err.Error())
}

// isAwaitingRegistration returns whether the machine's DNS records are not written yet. A look-up before
// that fails, and name servers then cache the negative response.
func (r *Reconciler) isAwaitingRegistration(ctx context.Context, m *subject) (bool, error) {
	if !m.cluster.Spec.DNS.RegisterVMs {
		return false, nil
	}

	var reg v1alpha1.DNSRegistration
	if err := r.client.Get(ctx, client.ObjectKey{Name: dns.RegistrationName(m.object)}, &reg); err != nil {
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	}

	return reg.Status.RegisteredAt == nil, nil
}

// stateFor returns the state of the machine, or a new state if the machine or its settings have changed.
func (r *Reconciler) stateFor(m *subject, lookupSchedule, testSchedule schedule) state {
	fingerprint := fmt.Sprintf("%s %s %s %s %s/%d",
		m.object.GetUID(), m.fqdn, m.domain, m.addrs, m.cluster.UID, m.cluster.Generation)

	r.mu.Lock()
	defer r.mu.Unlock()

	if current, ok := r.states[client.ObjectKeyFromObject(m.object)]; ok && current.fingerprint == fingerprint {
		return current
	}

	readySince := m.readySince
	if readySince.IsZero() {
		readySince = r.clock.Now()
	}

	return state{
		fingerprint: fingerprint,
		dns:         newProgress(lookupSchedule, readySince), network: newProgress(testSchedule, readySince),
	}
}

func (r *Reconciler) saveState(key client.ObjectKey, current state) {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.states[key] = current
}

func (r *Reconciler) deleteState(key client.ObjectKey) {
	r.mu.Lock()
	defer r.mu.Unlock()

	delete(r.states, key)
}

// runChecks runs the checks for all addresses of the machine at the same time. Each check has its own
// timeout.
func (r *Reconciler) runChecks(ctx context.Context, system string, checks []check, m *subject) []finding {
	findings := make([]finding, len(m.addrs)*len(checks))

	var group sync.WaitGroup

	for i, addr := range m.addrs {
		for j, c := range checks {
			group.Go(func() {
				start := r.clock.Now()
				result := c.runWithTimeout(ctx, target{fqdn: m.fqdn, addr: addr})

				if len(m.addrs) > 1 {
					result.check += " " + addr.String()
				}

				findings[i*len(checks)+j] = result

				if r.calls != nil {
					r.calls.Observe(system, c.name, r.clock.Since(start), result.asError())
				}
			})
		}
	}

	group.Wait()

	return findings
}

// report writes the condition, and requeues the machine at the time when the next check is due.
func (r *Reconciler) report(
	ctx context.Context, m *subject, current state, shouldLookUp, shouldTest bool,
) (reconcile.Result, error) {
	var (
		findings []finding
		next     time.Time
	)

	for _, set := range []struct {
		isEnabled bool
		progress
	}{{shouldLookUp, current.dns}, {shouldTest, current.network}} {
		if !set.isEnabled {
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
		return result, r.writer().Report(ctx, m.object, metav1.ConditionUnknown, "Pending", "no check has run yet")
	}

	status, reason, message := summarize(findings, m)

	return result, r.writer().Report(ctx, m.object, status, reason, message)
}
