// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package orphans

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/workload"
)

const (
	// A sweep holds the orphaned machines of a cluster if their number exceeds fewMachines and also exceeds
	// 1/maxShareDivisor of the machines that this operator has on the cluster. A crash does not leave this
	// many orphans. More likely, claims were lost, for example because etcd was restored from a backup.
	fewMachines     = 3
	maxShareDivisor = 4
	// holdPeriod is how long a sweep holds such machines, unless a person sets the annotation that allows
	// their deletion.
	holdPeriod = 24 * time.Hour
	// maxRunnerListAge is how old the list of runners may be from which the sweep reads whether a runner is
	// busy.
	maxRunnerListAge = 10 * time.Second
)

// orphan identifies something without a claim: its kind, its cluster or namespace, and the UID of its
// claim. For a runner, uid is the name of the runner.
type orphan struct{ kind, location, uid string }

// recordFound records that this sweep has found the orphan. It returns the time of the first sweep of this process that
// has found it.
func (s *Sweeper) recordFound(o orphan) time.Time {
	if s.firstSeen == nil {
		s.firstSeen = map[orphan]time.Time{}
	}

	if _, ok := s.firstSeen[o]; !ok {
		s.firstSeen[o] = s.Clock.Now()
	}

	s.seen[o] = true

	return s.firstSeen[o]
}

// isOldEnough records that this sweep has found the orphan, and reports whether it was first found at least
// s.MinAge ago.
func (s *Sweeper) isOldEnough(o orphan) bool { return s.Clock.Since(s.recordFound(o)) >= s.MinAge }

// beginSweep resets the set of orphans that the current sweep has found.
func (s *Sweeper) beginSweep() { s.seen = map[orphan]bool{} }

// endSweep forgets the orphans that the current sweep has not found: they have a claim again, or are deleted.
func (s *Sweeper) endSweep() {
	for o := range s.firstSeen {
		if !s.seen[o] {
			delete(s.firstSeen, o)
		}
	}
}

// shouldHold reports whether the orphaned machines of a cluster must not be deleted yet, because there are
// too many of them. In this case it emits an event on the HypervisorCluster. A person can release the
// machines with an annotation; otherwise shouldHold releases them 24 hours after the oldest of them was
// first found.
func (s *Sweeper) shouldHold(ctx context.Context, name string, orphaned []hypervisor.Machine, total int) bool {
	if len(orphaned) <= max(fewMachines, total/maxShareDivisor) {
		s.Metrics.setHeld(name, 0)

		return false
	}

	var cluster v1alpha1.HypervisorCluster
	if err := s.Live.Get(ctx, types.NamespacedName{Name: name}, &cluster); err != nil {
		s.Log.WarnContext(ctx, "orphaned machines are kept: their HypervisorCluster cannot be read", "cluster", name, "error", err)

		return true
	}

	if cluster.Annotations[v1alpha1.AnnotationRemoveOrphans] == "true" {
		s.Metrics.setHeld(name, 0)

		return false
	}

	oldest := s.Clock.Now()
	for _, m := range orphaned {
		if foundAt, ok := s.firstSeen[newMachineOrphan(name, m)]; ok && foundAt.Before(oldest) {
			oldest = foundAt
		}
	}

	if s.Clock.Since(oldest) >= holdPeriod {
		s.Metrics.setHeld(name, 0)

		return false
	}

	s.Metrics.setHeld(name, len(orphaned))

	message := fmt.Sprintf("%d of %d machines of this operator have no MachineClaim, so claims were probably lost: "+
		"the operator keeps the machines until %s. To delete them sooner, set the annotation %s=true on HypervisorCluster %s",
		len(orphaned), total, oldest.Add(holdPeriod).UTC().Format(time.RFC3339), v1alpha1.AnnotationRemoveOrphans, name)
	s.Recorder.Eventf(&cluster, nil, corev1.EventTypeWarning, "OrphansHeld", "Sweep", "%s", message)
	s.Log.WarnContext(ctx, "orphaned machines are kept for now", "cluster", name, "machines", len(orphaned), "of", total)

	return true
}

// mayBeBusy returns whether the runner of a machine without a claim is busy or may be busy, and why. The runner may be
// busy if the pool, the template or the CI platform cannot be read at this time. If the pool or the template no longer
// exists, mayBeBusy returns false: the CI platform is then unknown, and only the age of the orphan counts.
func (s *Sweeper) mayBeBusy(ctx context.Context, owner hypervisor.Owner) (why string, mayBe bool) {
	if owner.Pool == "" {
		return "", false
	}

	var (
		pool     v1alpha1.RunnerPool
		template v1alpha1.HypervisorMachineTemplate
	)

	err := s.Live.Get(ctx, types.NamespacedName{Namespace: owner.Namespace, Name: owner.Pool}, &pool)

	switch {
	case apierrors.IsNotFound(err):
		return "", false
	case err != nil:
		return "its RunnerPool cannot be read", true
	}

	err = s.Live.Get(ctx, types.NamespacedName{Namespace: owner.Namespace, Name: pool.Spec.TemplateRef.Name}, &template)

	switch {
	case apierrors.IsNotFound(err):
		return "", false
	case err != nil:
		return "its template cannot be read", true
	}

	provider, err := s.Workloads.ProviderFor(ctx, &template, pool.Spec.Workload)
	if err != nil {
		return "its CI platform cannot be called: " + err.Error(), true
	}

	name := workload.RunnerName(owner.Name, types.UID(owner.UID))

	runner, err := provider.FindRunner(ctx, name, maxRunnerListAge)

	switch {
	case workload.Is(err, workload.NotFound):
		return "", false
	case err != nil:
		return "its CI platform does not return the runner: " + err.Error(), true
	case runner.Busy:
		return "runner " + name + " is busy", true
	default:
		return "", false
	}
}

// newMachineOrphan returns the orphan for a machine, or for the cloud-init ISO of a machine that no longer exists
// (StateRemains).
func newMachineOrphan(cluster string, m hypervisor.Machine) orphan {
	kind := kindMachine
	if m.State == hypervisor.StateRemains {
		kind = kindISO
	}

	return orphan{kind, cluster, m.Owner.UID}
}
