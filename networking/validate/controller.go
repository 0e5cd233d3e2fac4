// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

// Reconciler validates MachineClaims.
type Reconciler struct {
	client client.Client
	clock  clock.PassiveClock
	calls  *metrics.Calls
	ports  ports

	mu     sync.Mutex
	states map[client.ObjectKey]state
}

// state is what is known of one machine. It is kept in memory: an operator that starts
// looks at every machine anew.
type state struct {
	// about is the machine and the settings that it is about.
	about        string
	dns, network track
}

//+kubebuilder:rbac:groups=hyperfleet.io,resources=machineclaims;hypervisorclusters;dnsregistrations,verbs=get;list;watch
//+kubebuilder:rbac:groups=hyperfleet.io,resources=machineclaims/status,verbs=patch

// SetupWithManager adds the validation of machines to a manager.
func SetupWithManager(mgr ctrl.Manager, opts Options) error {
	r := &Reconciler{
		client: mgr.GetClient(), clock: opts.Clock, calls: opts.Calls,
		ports: ports{dns: opts.DNSPort, ssh: opts.SSHPort}, states: map[client.ObjectKey]state{},
	}

	if r.clock == nil {
		r.clock = clock.RealClock{}
	}

	if r.ports.dns == "" {
		r.ports.dns = dnsPort
	}

	if r.ports.ssh == "" {
		r.ports.ssh = sshPort
	}

	err := ctrl.NewControllerManagedBy(mgr).
		Named("networkvalidation").
		For(&v1alpha1.MachineClaim{}).
		Watches(&v1alpha1.DNSRegistration{}, handler.EnqueueRequestsFromMapFunc(claimstatus.OfRegistration)).
		Watches(&v1alpha1.HypervisorCluster{}, handler.EnqueueRequestsFromMapFunc(claimstatus.OfCluster(r.client)),
			builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrency}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("add controller networkvalidation: %w", err)
	}

	return nil
}

// Reconcile makes the checks of one machine that are due, and reports them.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var claim v1alpha1.MachineClaim

	err := r.client.Get(ctx, req.NamespacedName, &claim)
	if apierrors.IsNotFound(err) {
		r.forget(req.NamespacedName)

		return reconcile.Result{}, nil
	}

	if err != nil {
		return reconcile.Result{}, fmt.Errorf("read machine claim %s: %w", req.NamespacedName, err)
	}

	// What was found of a machine while it was there is left to be read.
	info := claim.Status.NetworkInfo
	if claim.Status.Phase != v1alpha1.MachineClaimReady || claim.Status.VMRef == nil || info == nil {
		return reconcile.Result{}, nil
	}

	var cluster v1alpha1.HypervisorCluster
	if err := r.client.Get(ctx, client.ObjectKey{Name: claim.Status.VMRef.HypervisorCluster}, &cluster); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}

	return r.validate(ctx, &claim, &cluster)
}

func (r *Reconciler) writer() *claimstatus.Writer {
	return &claimstatus.Writer{
		Client: r.client, Clock: r.clock, Owner: FieldOwner, Type: v1alpha1.ConditionNetworkValidated,
	}
}

// validate makes one pass over a machine that is Ready.
func (r *Reconciler) validate(
	ctx context.Context, claim *v1alpha1.MachineClaim, cluster *v1alpha1.HypervisorCluster,
) (reconcile.Result, error) {
	lookUps, looks := dnsRhythm(cluster.Spec.DNS)
	tests, testing := networkRhythm(cluster.Spec)

	if !looks && !testing {
		r.forget(client.ObjectKeyFromObject(claim))

		return reconcile.Result{}, r.writer().Clear(ctx, claim)
	}

	info := claim.Status.NetworkInfo

	addr, err := netip.ParseAddr(info.IPAddress)
	if err != nil {
		return reconcile.Result{}, r.writer().Report(ctx, claim, metav1.ConditionUnknown, "NoAddress",
			"the machine's address is not known yet: its guest agent reports it")
	}

	if looks {
		waits, err := r.registering(ctx, claim, cluster)
		if err != nil {
			return reconcile.Result{}, err
		}

		if waits {
			return reconcile.Result{}, r.writer().Report(ctx, claim, metav1.ConditionUnknown, "WaitingForRegistration",
				"the machine's DNS records are not written yet: see the condition "+v1alpha1.ConditionDNSRegistered)
		}
	}

	machine := target{fqdn: strings.ToLower(strings.TrimSuffix(info.FQDN, ".")), addr: addr}
	now := r.clock.Now()
	known := r.state(claim, cluster, machine, lookUps, tests)

	if looks && known.dns.due(now) {
		findings := r.run(ctx, "dns-lookup", dnsChecks(cluster.Spec.DNS, r.ports), machine)
		known.dns = known.dns.after(lookUps, r.clock.Now(), findings)
	}

	if testing && known.network.due(now) {
		findings := r.run(ctx, "machine", networkChecks(cluster.Spec.Network.Validation, r.ports), machine)
		known.network = known.network.after(tests, r.clock.Now(), findings)
	}

	r.remember(client.ObjectKeyFromObject(claim), known)

	return r.report(ctx, claim, machine, known, looks, testing)
}

// registering says whether the machine's records are still to be written: what is asked
// for too early, name servers remember as not being there.
func (r *Reconciler) registering(
	ctx context.Context, claim *v1alpha1.MachineClaim, cluster *v1alpha1.HypervisorCluster,
) (bool, error) {
	if !cluster.Spec.DNS.RegisterVMs {
		return false, nil
	}

	var reg v1alpha1.DNSRegistration
	if err := r.client.Get(ctx, client.ObjectKey{Name: dns.NameFor(claim)}, &reg); err != nil {
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	}

	return reg.Status.RegisteredAt == nil, nil
}

// state gives what is known of the machine, or begins anew where it or its settings have
// changed.
func (r *Reconciler) state(
	claim *v1alpha1.MachineClaim, cluster *v1alpha1.HypervisorCluster, machine target, lookUps, tests rhythm,
) state {
	about := fmt.Sprintf("%s %s %s %s/%d", claim.UID, machine.fqdn, machine.addr, cluster.UID, cluster.Generation)

	r.mu.Lock()
	defer r.mu.Unlock()

	if known, ok := r.states[client.ObjectKeyFromObject(claim)]; ok && known.about == about {
		return known
	}

	ready := r.clock.Now()
	if times := claim.Status.Times; times != nil && times.Ready != nil {
		ready = times.Ready.Time
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

// run makes checks at the same time; each has its own time limit.
func (r *Reconciler) run(ctx context.Context, system string, checks []check, machine target) []finding {
	findings := make([]finding, len(checks))

	var group sync.WaitGroup

	for i, c := range checks {
		group.Go(func() {
			start := r.clock.Now()
			findings[i] = c.run(ctx, machine)

			if r.calls != nil {
				r.calls.Observe(system, c.name, r.clock.Since(start), findings[i].err())
			}
		})
	}

	group.Wait()

	return findings
}

// report writes the condition and says when to come back.
func (r *Reconciler) report(
	ctx context.Context, claim *v1alpha1.MachineClaim, machine target, known state, looks, testing bool,
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
		return result, r.writer().Report(ctx, claim, metav1.ConditionUnknown, "Pending", "nothing has been checked yet")
	}

	status, reason, message := verdict(findings, machine)

	return result, r.writer().Report(ctx, claim, status, reason, message)
}
