// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package orphans

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/workload"
)

const (
	// fewMachines without claims may go in one sweep whatever their share is; of more, no more
	// than 1/largestShare of the machines that this operator has on the cluster. More than that
	// is no remains of a crash: claims were lost, as by an etcd that was restored.
	fewMachines  = 3
	largestShare = 4
	// heldFor is how long machines are held that are too many to be remains, unless a person
	// lets them go sooner.
	heldFor = 24 * time.Hour
	// runnerAge is how old the CI platform's listing may be that says whether a runner is busy.
	runnerAge = 10 * time.Second
)

// thing is one found without a claim: what it is, on which cluster or scope, and whose.
type thing struct{ side, where, uid string }

// ripe says whether a thing without a claim has been one for so long that it is no claim's
// that is only not known yet. Sweeps of one process alone count.
func (s *Sweeper) ripe(t thing) bool {
	now := s.Clock.Now()

	if s.since == nil {
		s.since = map[thing]time.Time{}
	}

	if _, ok := s.since[t]; !ok {
		s.since[t] = now
	}

	s.now[t] = true

	return now.Sub(s.since[t]) >= s.Age
}

// begin and end of a sweep: what was not found again has a claim, or is gone.
func (s *Sweeper) begin() { s.now = map[thing]bool{} }

func (s *Sweeper) end() {
	for t := range s.since {
		if !s.now[t] {
			delete(s.since, t)
		}
	}
}

// held says whether so many of a cluster's machines have no claim that they are left for a
// person to look at. It is told on the HypervisorCluster.
func (s *Sweeper) held(ctx context.Context, name string, lost []hypervisor.Machine, all int) bool {
	if len(lost) <= max(fewMachines, all/largestShare) {
		s.Metrics.hold(name, 0)

		return false
	}

	var cluster v1alpha1.HypervisorCluster
	if err := s.Live.Get(ctx, types.NamespacedName{Name: name}, &cluster); err != nil {
		s.Log.WarnContext(ctx, "orphaned machines were not removed: their cluster can't be read", "cluster", name, "error", err)

		return true
	}

	if cluster.Annotations[v1alpha1.AnnotationRemoveOrphans] == "true" {
		s.Metrics.hold(name, 0)

		return false
	}

	oldest := s.Clock.Now()
	for _, m := range lost {
		if at, ok := s.since[machineThing(name, m)]; ok && at.Before(oldest) {
			oldest = at
		}
	}

	if s.Clock.Since(oldest) >= heldFor {
		s.Metrics.hold(name, 0)

		return false
	}

	s.Metrics.hold(name, len(lost))

	message := fmt.Sprintf("%d of %d machines with this operator's mark have no MachineClaim, as if claims had been lost: "+
		"they are left alone until %s. If they may go, set the annotation %s=true on HypervisorCluster %s",
		len(lost), all, oldest.Add(heldFor).UTC().Format(time.RFC3339), v1alpha1.AnnotationRemoveOrphans, name)
	s.Recorder.Eventf(&cluster, nil, corev1.EventTypeWarning, "OrphansHeld", "Sweep", "%s", message)
	s.Log.WarnContext(ctx, "orphaned machines are held", "cluster", name, "machines", len(lost), "of", all)

	return true
}

// busy says whether the runner of a machine without a claim works, or that it can't be known
// now. Of a machine whose pool is gone nobody can tell, and its age alone counts.
func (s *Sweeper) busy(ctx context.Context, owner hypervisor.Owner) (string, bool) {
	if owner.Pool == "" {
		return "", false
	}

	var (
		pool     v1alpha1.RunnerPool
		template v1alpha1.HypervisorMachineTemplate
	)

	err := s.Live.Get(ctx, types.NamespacedName{Namespace: owner.Namespace, Name: owner.Pool}, &pool)
	if err != nil {
		return "its pool can't be read", client.IgnoreNotFound(err) != nil
	}

	err = s.Live.Get(ctx, types.NamespacedName{Namespace: owner.Namespace, Name: pool.Spec.TemplateRef.Name}, &template)
	if err != nil {
		return "its template can't be read", client.IgnoreNotFound(err) != nil
	}

	provider, err := s.Workloads.For(ctx, &template, pool.Spec.Workload)
	if err != nil {
		return "its CI platform can't be asked: " + err.Error(), true
	}

	name := workload.RunnerName(owner.Name, types.UID(owner.UID))

	runner, err := provider.Find(ctx, name, runnerAge)

	switch {
	case workload.Is(err, workload.NotFound):
		return "", false
	case err != nil:
		return "its CI platform does not say whether it is busy: " + err.Error(), true
	default:
		return "runner " + name + " is busy", runner.Busy
	}
}

func machineThing(cluster string, m hypervisor.Machine) thing {
	side := sideMachine
	if m.State == hypervisor.StateRemains {
		side = sideISO
	}

	return thing{side, cluster, m.Owner.UID}
}
