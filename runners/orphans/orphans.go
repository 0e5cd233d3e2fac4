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
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/identity"
	"github.com/hyperfleet/hyperfleet/runners/connect"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
	"github.com/hyperfleet/hyperfleet/workload"

	"github.com/prometheus/client_golang/prometheus"
)

// sweepTimeout bounds one sweep.
const sweepTimeout = 5 * time.Minute

// Sweeper compares what is outside with the claims, again and again. It is a
// manager.Runnable that runs on the leader only.
type Sweeper struct {
	// Live reads from the API server itself.
	Live      client.Reader
	Recorder  events.EventRecorder
	Clusters  *connect.Clusters
	Workloads *connect.Workloads
	// Identity knows machines' identities; nil where the operator has no SPIRE server.
	Identity identity.Registry
	// OperatorUID is whose mark is looked for.
	OperatorUID string
	Interval    time.Duration
	// Age is how long something has to have been without a claim before it is removed.
	Age time.Duration
	// DryRun has everything told and nothing removed.
	DryRun  bool
	Clock   clock.WithTicker
	Log     *slog.Logger
	Metrics *Metrics

	// since is when each thing was first found without a claim, and now what this sweep found.
	since map[thing]time.Time
	now   map[thing]bool
}

// What is looked for.
const (
	sideMachine  = "machine"
	sideISO      = "iso"
	sideRunner   = "runner"
	sideIdentity = "identity"
)

// Metrics count what was found.
type Metrics struct {
	found    *prometheus.CounterVec
	heldBack *prometheus.GaugeVec
}

// NewMetrics registers hyperfleet_orphans_removed_total{side}, side being machine,
// iso, runner or identity, and hyperfleet_orphans_held{cluster}.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{found: prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "hyperfleet", Subsystem: "orphans", Name: "removed_total",
		Help: "Things with this operator's mark that belonged to no claim and were removed, by side: " +
			"machine, iso (of cloud-init), runner, identity.",
	}, []string{"side"}), heldBack: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "hyperfleet", Subsystem: "orphans", Name: "held",
		Help: "Machines with this operator's mark and without a claim that are too many to be the remains of a crash, " +
			"and are left for a person to look at.",
	}, []string{"cluster"})}

	for _, collector := range []prometheus.Collector{m.found, m.heldBack} {
		if err := registerer.Register(collector); err != nil {
			return nil, fmt.Errorf("register orphan metrics: %w", err)
		}
	}

	return m, nil
}

func (m *Metrics) removed(side string) {
	if m != nil {
		m.found.WithLabelValues(side).Inc()
	}
}

func (m *Metrics) hold(cluster string, machines int) {
	if m != nil {
		m.heldBack.WithLabelValues(cluster).Set(float64(machines))
	}
}

// NeedLeaderElection says that only the leader sweeps.
func (s *Sweeper) NeedLeaderElection() bool { return true }

// Start sweeps until the context ends.
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

// Sweep makes one pass over everything. What can't be listed or removed now is tried
// again with the next.
func (s *Sweeper) Sweep(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()

	s.begin()
	defer s.end()

	s.Clusters.Each(func(name string, provider hypervisor.Provider) {
		if err := s.machines(ctx, name, provider); err != nil {
			s.Log.WarnContext(ctx, "orphaned machines were not swept", "cluster", name, "error", err)
		}
	})

	if err := s.runners(ctx); err != nil {
		s.Log.WarnContext(ctx, "orphaned runners were not swept", "error", err)
	}

	if err := s.identities(ctx); err != nil {
		s.Log.WarnContext(ctx, "orphaned identities were not swept", "error", err)
	}
}

// identities removes the identities that this operator has registered for claims that are
// gone.
func (s *Sweeper) identities(ctx context.Context) error {
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

	// The claims are read after the identities: one whose claim is not there now never gets
	// it back.
	claims, err := s.claims(ctx)
	if err != nil {
		return err
	}

	for _, id := range found {
		if claims.uids[id.UID] || !s.ripe(thing{sideIdentity, id.Namespace, id.UID}) || s.only(ctx, sideIdentity, id.Path()) {
			continue
		}

		if err := s.Identity.Remove(ctx, id); err != nil {
			s.Log.WarnContext(ctx, "orphan was not removed", "side", sideIdentity, "identity", id.Path(), "error", err)

			continue
		}

		s.Metrics.removed(sideIdentity)
		s.Log.InfoContext(ctx, "orphan removed", "side", sideIdentity, "identity", id.Path())
	}

	return nil
}

// machines removes the machines and cloud-init ISOs of a cluster that belong to no claim.
func (s *Sweeper) machines(ctx context.Context, cluster string, provider hypervisor.Provider) error {
	found, err := provider.List(ctx)
	if err != nil {
		return fmt.Errorf("list machines of cluster %s: %w", cluster, err)
	}

	if len(found) == 0 {
		return nil
	}

	claims, err := s.claims(ctx)
	if err != nil {
		return err
	}

	lost := s.lost(cluster, found, claims)
	if s.held(ctx, cluster, lost, len(found)) {
		return nil
	}

	for _, m := range lost {
		at := machineThing(cluster, m)
		side := at.side

		if !s.ripe(at) || s.only(ctx, side, fmt.Sprintf("%d on cluster %s", m.ID, cluster)) {
			continue
		}

		if why, busy := s.busy(ctx, m.Owner); side == sideMachine && busy {
			s.Log.WarnContext(ctx, "orphan is left for now", "side", side, "cluster", cluster, "id", m.ID, "reason", why)

			continue
		}

		err := provider.Delete(ctx, hypervisor.MachineRef{ID: m.ID, Owner: m.Owner})
		if err != nil && !hypervisor.Is(err, hypervisor.NotFound) {
			s.Log.WarnContext(ctx, "orphan was not removed", "side", side, "cluster", cluster, "id", m.ID, "error", err)

			continue
		}

		s.Metrics.removed(side)
		s.Log.InfoContext(ctx, "orphan removed", "side", side, "cluster", cluster, "id", m.ID, "name", m.Name,
			"claim", m.Owner.Namespace+"/"+m.Owner.Name)
	}

	return nil
}

// lost are the machines that belong to no claim.
func (s *Sweeper) lost(cluster string, found []hypervisor.Machine, claims owners) []hypervisor.Machine {
	var out []hypervisor.Machine

	for _, m := range found {
		if !claims.uids[m.Owner.UID] {
			s.ripe(machineThing(cluster, m))

			out = append(out, m)
		}
	}

	return out
}

// only says that a thing is told of and not removed.
func (s *Sweeper) only(ctx context.Context, side, what string) bool {
	if s.DryRun {
		s.Log.InfoContext(ctx, "orphan would be removed", "side", side, "name", what)
	}

	return s.DryRun
}

// owners are the claims that there are.
type owners struct {
	uids    map[string]bool
	runners map[string]bool
}

func (s *Sweeper) claims(ctx context.Context) (owners, error) {
	var claims v1alpha1.MachineClaimList
	if err := s.Live.List(ctx, &claims); err != nil {
		return owners{}, fmt.Errorf("list machine claims: %w", err)
	}

	out := owners{uids: map[string]bool{}, runners: map[string]bool{}}

	for i := range claims.Items {
		out.uids[string(claims.Items[i].UID)] = true
		out.runners[vmspec.RunnerName(&claims.Items[i])] = true
	}

	return out, nil
}

// runners removes the runners, of all scopes that pools have, that belong to no claim.
func (s *Sweeper) runners(ctx context.Context) error {
	var (
		pools     v1alpha1.RunnerPoolList
		templates v1alpha1.HypervisorMachineTemplateList
	)

	if err := s.Live.List(ctx, &pools); err != nil {
		return fmt.Errorf("list runner pools: %w", err)
	}

	if err := s.Live.List(ctx, &templates); err != nil {
		return fmt.Errorf("list templates: %w", err)
	}

	seen := map[workload.Provider]bool{}

	for i := range pools.Items {
		pool := &pools.Items[i]

		at := slices.IndexFunc(templates.Items, func(t v1alpha1.HypervisorMachineTemplate) bool {
			return t.Namespace == pool.Namespace && t.Name == pool.Spec.TemplateRef.Name
		})
		if at < 0 {
			continue
		}

		provider, err := s.Workloads.For(ctx, &templates.Items[at], pool.Spec.Workload)
		if err != nil || seen[provider] {
			continue // why is in the template's conditions
		}

		seen[provider] = true

		if err := s.scope(ctx, pool, provider); err != nil {
			s.Log.WarnContext(ctx, "orphaned runners were not swept", "pool", client.ObjectKeyFromObject(pool), "error", err)
		}
	}

	return nil
}

// scope removes the orphaned runners of one scope.
func (s *Sweeper) scope(ctx context.Context, pool *v1alpha1.RunnerPool, provider workload.Provider) error {
	runners, err := provider.Runners(ctx, "")
	if err != nil {
		return fmt.Errorf("list runners: %w", err)
	}

	mark := vmspec.OperatorLabel(s.OperatorUID)
	runners = slices.DeleteFunc(runners, func(r workload.Runner) bool {
		return r.Online || r.Busy || !slices.Contains(r.Labels, mark)
	})

	if len(runners) == 0 {
		return nil
	}

	claims, err := s.claims(ctx)
	if err != nil {
		return err
	}

	for _, runner := range runners {
		if claims.runners[runner.Name] || !s.ripe(thing{sideRunner, pool.Namespace, runner.Name}) ||
			s.only(ctx, sideRunner, runner.Name) {
			continue
		}

		err := provider.Deregister(ctx, runner.ID)
		if err != nil && !workload.Is(err, workload.NotFound) {
			s.Log.WarnContext(ctx, "orphan was not removed", "side", sideRunner, "runner", runner.Name, "error", err)

			continue
		}

		s.Metrics.removed(sideRunner)
		s.Recorder.Eventf(pool, nil, corev1.EventTypeNormal, "OrphanRemoved", "Sweep",
			"runner %s belonged to no MachineClaim", runner.Name)
		s.Log.InfoContext(ctx, "orphan removed", "side", sideRunner, "runner", runner.Name)
	}

	return nil
}
