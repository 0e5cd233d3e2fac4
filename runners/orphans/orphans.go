// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package orphans

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/identity"
	"github.com/hyperfleet/hyperfleet/kit/watch"
	"github.com/hyperfleet/hyperfleet/runners/connect"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
	"github.com/hyperfleet/hyperfleet/workload"

	"github.com/prometheus/client_golang/prometheus"
)

// sweepTimeout limits one sweep.
const sweepTimeout = 5 * time.Minute

// Sweeper compares external resources with the claims every Interval, and deletes those without a claim. It
// is a manager.Runnable that runs on the leader only.
type Sweeper struct {
	// Live reads from the API server and bypasses the cache.
	Live      client.Reader
	Recorder  events.EventRecorder
	Clusters  *connect.Clusters
	Workloads *connect.Workloads
	// Identity lists the identities of machines. It is nil if the operator has no SPIRE server.
	Identity identity.Registry
	// Namespaces are the namespaces that this operator serves, or empty for all. The runners of other namespaces are
	// those of other operators, whose Secrets this operator may not be allowed to read.
	Namespaces []string
	// OperatorUID selects the resources of this operator.
	OperatorUID string
	Interval    time.Duration
	// MinAge is how long a resource must have had no claim before the sweeper deletes it.
	MinAge time.Duration
	// DryRun makes the sweeper log orphans and delete nothing.
	DryRun  bool
	Clock   clock.WithTicker
	Log     *slog.Logger
	Metrics *Metrics

	// firstSeen holds when each orphan was first found, and seen holds the orphans that the current sweep has found.
	firstSeen map[orphan]time.Time
	seen      map[orphan]bool
}

// Kinds of orphans, as values of the metric label type.
const (
	kindMachine  = "machine"
	kindISO      = "iso"
	kindRunner   = "runner"
	kindIdentity = "identity"
)

// Metrics counts deleted and held orphans.
type Metrics struct {
	removals *prometheus.CounterVec
	held     *prometheus.GaugeVec
}

// NewMetrics registers hyperfleet_orphans_removed_total{type,side} and hyperfleet_orphans_held{cluster}.
// Values of type are machine, iso, runner and identity. side is the former name of type.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{removals: prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "hyperfleet", Subsystem: "orphans", Name: "removed_total",
		Help: "Resources of this operator that belonged to no claim and were deleted, by type: " +
			"machine, iso (of cloud-init), runner, identity.",
	}, []string{"type", "side"}), held: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "hyperfleet", Subsystem: "orphans", Name: "held",
		Help: "Orphaned machines that are kept for 24 hours for a person to check, because unusually many machines have no claim.",
	}, []string{"cluster"})}

	for _, collector := range []prometheus.Collector{m.removals, m.held} {
		if err := registerer.Register(collector); err != nil {
			return nil, fmt.Errorf("register orphan metrics: %w", err)
		}
	}

	// Every series starts at 0, because increase() does not see the first increment of a new series.
	for _, kind := range []string{kindMachine, kindISO, kindRunner, kindIdentity} {
		m.removals.WithLabelValues(kind, kind)
	}

	return m, nil
}

func (m *Metrics) countRemoved(kind string) {
	if m != nil {
		m.removals.WithLabelValues(kind, kind).Inc()
	}
}

func (m *Metrics) setHeld(cluster string, machines int) {
	if m != nil {
		m.held.WithLabelValues(cluster).Set(float64(machines))
	}
}

// NeedLeaderElection returns true, so that only the leader sweeps.
func (s *Sweeper) NeedLeaderElection() bool { return true }

// Start sweeps every Interval until the context is done.
func (s *Sweeper) Start(ctx context.Context) error {
	ticker := s.Clock.NewTicker(s.Interval)
	defer ticker.Stop()

	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
			s.Sweep(ctx)
		}
	}
}

// Sweep deletes all orphans once. It logs what it cannot list or delete; the next sweep retries.
func (s *Sweeper) Sweep(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()

	s.beginSweep()
	defer s.endSweep()

	s.Clusters.ForEach(func(name string, provider hypervisor.Provider) {
		if err := s.sweepMachines(ctx, name, provider); err != nil {
			s.Log.WarnContext(ctx, "could not sweep orphaned machines", "cluster", name, "error", err)
		}
	})

	if err := s.sweepRunners(ctx); err != nil {
		s.Log.WarnContext(ctx, "could not sweep orphaned runners", "error", err)
	}

	if err := s.sweepIdentities(ctx); err != nil {
		s.Log.WarnContext(ctx, "could not sweep orphaned identities", "error", err)
	}
}

// sweepIdentities deletes the identities that this operator has registered for claims that no longer exist.
func (s *Sweeper) sweepIdentities(ctx context.Context) error {
	if s.Identity == nil {
		return nil
	}

	found, err := s.Identity.List(ctx)
	if err != nil {
		return fmt.Errorf("list identities: %w", err)
	}

	if len(found) == 0 {
		return nil
	}

	// The claims are listed after the identities, so an identity without a claim in this list is an orphan.
	claims, err := s.listClaims(ctx)
	if err != nil {
		return err
	}

	for _, id := range found {
		if claims.uids[id.UID] || !s.isOldEnough(orphan{kindIdentity, id.Namespace, id.UID}) ||
			s.isDryRun(ctx, kindIdentity, id.Path()) {
			continue
		}

		if err := s.Identity.Unregister(ctx, id); err != nil {
			s.Log.WarnContext(ctx, "could not delete orphan", "type", kindIdentity, "identity", id.Path(), "error", err)

			continue
		}

		s.Metrics.countRemoved(kindIdentity)
		s.Log.InfoContext(ctx, "orphan deleted", "type", kindIdentity, "identity", id.Path())
	}

	return nil
}

// sweepMachines deletes the machines and cloud-init ISOs of a cluster that belong to no claim.
func (s *Sweeper) sweepMachines(ctx context.Context, cluster string, provider hypervisor.Provider) error {
	found, err := provider.List(ctx)
	if err != nil {
		return fmt.Errorf("list machines of cluster %s: %w", cluster, err)
	}

	if len(found) == 0 {
		return nil
	}

	claims, err := s.listClaims(ctx)
	if err != nil {
		return err
	}

	lost, others := s.findOrphans(cluster, found, claims)
	if s.shouldHold(ctx, cluster, lost, len(found)) {
		lost = nil
	}

	for _, m := range slices.Concat(others, lost) {
		key := newMachineOrphan(cluster, m)
		kind := key.kind

		if !s.isOldEnough(key) && !claims.supersedes(m.Owner) {
			continue
		}

		if s.isDryRun(ctx, kind, fmt.Sprintf("%d on cluster %s", m.ID, cluster)) {
			continue
		}

		if reason, mayBeBusy := s.mayBeBusy(ctx, m.Owner); kind == kindMachine && mayBeBusy {
			s.Log.WarnContext(ctx, "orphan is kept for now", "type", kind, "cluster", cluster, "id", m.ID, "reason", reason)

			continue
		}

		err := provider.Delete(ctx, hypervisor.MachineRef{ID: m.ID, Owner: m.Owner})
		if err != nil && !hypervisor.Is(err, hypervisor.NotFound) {
			s.Log.WarnContext(ctx, "could not delete orphan", "type", kind, "cluster", cluster, "id", m.ID, "error", err)

			continue
		}

		s.Metrics.countRemoved(kind)
		s.Log.InfoContext(ctx, "orphan deleted", "type", kind, "cluster", cluster, "id", m.ID, "name", m.Name,
			"claim", m.Owner.Namespace+"/"+m.Owner.Name)
	}

	return nil
}

// findOrphans returns the machines without a claim, and records when each of them was first found. The claims
// of lost may have been lost by mistake, so these machines may be held. others can be deleted: they are
// cloud-init ISOs without a VM, and machines whose claim was replaced by a newer one.
func (s *Sweeper) findOrphans(
	cluster string, found []hypervisor.Machine, claims claimIndex,
) (lost, others []hypervisor.Machine) {
	for _, m := range found {
		if claims.uids[m.Owner.UID] {
			continue
		}

		s.recordFound(newMachineOrphan(cluster, m))

		if m.State == hypervisor.StateRemains || claims.supersedes(m.Owner) {
			others = append(others, m)
		} else {
			lost = append(lost, m)
		}
	}

	return lost, others
}

// isDryRun reports whether the sweeper must not delete the orphan. In this case it logs the orphan.
func (s *Sweeper) isDryRun(ctx context.Context, kind, name string) bool {
	if s.DryRun {
		s.Log.InfoContext(ctx, "orphan would be deleted (dry run)", "type", kind, "name", name)
	}

	return s.DryRun
}

// claimIndex holds the UIDs, the runner names, and the namespaces and names of all claims.
type claimIndex struct {
	uids    map[string]bool
	runners map[string]bool
	names   map[types.NamespacedName]bool
}

// supersedes reports whether a claim has the name of the owner, but another UID. The owner's claim is then gone for
// certain, and its machine keeps the other claim from getting one. This happens if claims are restored from a backup
// of objects.
func (c claimIndex) supersedes(owner hypervisor.Owner) bool {
	return !c.uids[owner.UID] && c.names[types.NamespacedName{Namespace: owner.Namespace, Name: owner.Name}]
}

func (s *Sweeper) listClaims(ctx context.Context) (claimIndex, error) {
	out := claimIndex{uids: map[string]bool{}, runners: map[string]bool{}, names: map[types.NamespacedName]bool{}}

	err := watch.ForEach(ctx, s.Live, &v1alpha1.MachineClaimList{}, func(claim *v1alpha1.MachineClaim) {
		out.uids[string(claim.UID)] = true
		out.runners[vmspec.RunnerName(claim)] = true
		out.names[client.ObjectKeyFromObject(claim)] = true
	})
	if err != nil {
		return claimIndex{}, fmt.Errorf("list machine claims: %w", err)
	}

	return out, nil
}

// sweepRunners deletes the runners that belong to no claim, in the scopes of the runner pools of its namespaces.
func (s *Sweeper) sweepRunners(ctx context.Context) error {
	var pools []*v1alpha1.RunnerPool

	templates := map[types.NamespacedName]*v1alpha1.HypervisorMachineTemplate{}

	err := watch.ForEachIn(ctx, s.Live, s.Namespaces, &v1alpha1.RunnerPoolList{}, func(pool *v1alpha1.RunnerPool) {
		pools = append(pools, pool)
	})
	if err != nil {
		return fmt.Errorf("list runner pools: %w", err)
	}

	err = watch.ForEachIn(ctx, s.Live, s.Namespaces, &v1alpha1.HypervisorMachineTemplateList{},
		func(template *v1alpha1.HypervisorMachineTemplate) {
			templates[client.ObjectKeyFromObject(template)] = template
		})
	if err != nil {
		return fmt.Errorf("list templates: %w", err)
	}

	seen := map[workload.Provider]bool{}

	for _, pool := range pools {
		template := templates[types.NamespacedName{Namespace: pool.Namespace, Name: pool.Spec.TemplateRef.Name}]
		if template == nil {
			continue
		}

		provider, err := s.Workloads.ProviderFor(ctx, template, pool.Spec.Workload)
		if err != nil || seen[provider] {
			continue // the template's conditions report the error
		}

		seen[provider] = true

		if err := s.sweepScope(ctx, pool, provider); err != nil {
			s.Log.WarnContext(ctx, "could not sweep orphaned runners", "pool", client.ObjectKeyFromObject(pool), "error", err)
		}
	}

	return nil
}

// sweepScope deletes the orphaned runners of one scope. It never deletes a runner that is online or busy.
func (s *Sweeper) sweepScope(ctx context.Context, pool *v1alpha1.RunnerPool, provider workload.Provider) error {
	runners, err := provider.ListRunners(ctx, "")
	if err != nil {
		return fmt.Errorf("list runners: %w", err)
	}

	label := vmspec.OperatorLabel(s.OperatorUID)
	runners = slices.DeleteFunc(runners, func(r workload.Runner) bool {
		return r.Online || r.Busy || !slices.Contains(r.Labels, label)
	})

	if len(runners) == 0 {
		return nil
	}

	claims, err := s.listClaims(ctx)
	if err != nil {
		return err
	}

	for _, runner := range runners {
		if claims.runners[runner.Name] || !s.isOldEnough(orphan{kindRunner, pool.Namespace, runner.Name}) ||
			s.isDryRun(ctx, kindRunner, runner.Name) {
			continue
		}

		err := provider.Deregister(ctx, runner.ID)
		if err != nil && !workload.Is(err, workload.NotFound) {
			s.Log.WarnContext(ctx, "could not delete orphan", "type", kindRunner, "runner", runner.Name, "error", err)

			continue
		}

		s.Metrics.countRemoved(kindRunner)
		s.Recorder.Eventf(pool, nil, corev1.EventTypeNormal, "OrphanRemoved", "Sweep",
			"deleted runner %s, because it belonged to no MachineClaim", runner.Name)
		s.Log.InfoContext(ctx, "orphan deleted", "type", kindRunner, "runner", runner.Name)
	}

	return nil
}
