// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runnerpool

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/demand"
)

// recentStartups is how many machines the start-up time is taken from.
const recentStartups = 15

// startups remember how long the latest machines of each pool took to start. They are
// lost with the process, which then begins with demand.DefaultStartup. The zero value is
// ready to use.
type startups struct {
	mu    sync.Mutex
	pools map[types.NamespacedName]*startupTimes
}

type startupTimes struct {
	// seen are the claims that were counted and are still there.
	seen map[types.UID]bool
	took []time.Duration
}

// note counts the machines that have become ready.
func (s *startups) note(pool types.NamespacedName, claims []v1alpha1.MachineClaim) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.pools == nil {
		s.pools = map[types.NamespacedName]*startupTimes{}
	}

	before := s.pools[pool]
	if before == nil {
		before = &startupTimes{}
	}

	after := &startupTimes{seen: map[types.UID]bool{}, took: before.took}

	for i := range claims {
		claim := &claims[i]
		if claim.Status.Times == nil || claim.Status.Times.Ready == nil {
			continue
		}

		after.seen[claim.UID] = true

		if !before.seen[claim.UID] {
			after.took = append(after.took, startupOf(claim))
		}
	}

	after.took = after.took[max(len(after.took)-recentStartups, 0):]
	s.pools[pool] = after
}

// startupOf is how long a machine took from when it was asked for until it was ready.
func startupOf(claim *v1alpha1.MachineClaim) time.Duration {
	asked := claim.CreationTimestamp.Time
	if activated := claim.Status.Times.Activated; activated != nil {
		asked = activated.Time
	}

	return max(claim.Status.Times.Ready.Sub(asked), 0)
}

// median is how long a machine of the pool takes to start.
func (s *startups) median(pool types.NamespacedName) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.pools[pool] == nil {
		return demand.DefaultStartup
	}

	return demand.Median(s.pools[pool].took)
}

func (s *startups) forget(pool types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()

	delete(s.pools, pool)
}

// fullFor is how long a cluster counts as full after a machine waited for room on it.
const fullFor = time.Minute

// fullClusters remember which templates' clusters had no room lately: a machine that no longer
// waits there does not mean that there is room. The zero value is ready to use.
type fullClusters struct {
	mu    sync.Mutex
	pools map[types.NamespacedName]map[string]time.Time
}

// note takes down which of the claims wait for room.
func (r *fullClusters) note(pool types.NamespacedName, claims []v1alpha1.MachineClaim, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()

	for i := range claims {
		if !waitsForRoom(&claims[i]) {
			continue
		}

		if r.pools == nil {
			r.pools = map[types.NamespacedName]map[string]time.Time{}
		}

		if r.pools[pool] == nil {
			r.pools[pool] = map[string]time.Time{}
		}

		r.pools[pool][claims[i].Spec.TemplateRef.Name] = now
	}
}

// full gives the templates whose clusters had no room lately.
func (r *fullClusters) full(pool types.NamespacedName, now time.Time) map[string]bool {
	r.mu.Lock()
	defer r.mu.Unlock()

	out := map[string]bool{}

	for template, at := range r.pools[pool] {
		if now.Sub(at) < fullFor {
			out[template] = true
		} else {
			delete(r.pools[pool], template)
		}
	}

	return out
}

func (r *fullClusters) forget(pool types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()

	delete(r.pools, pool)
}

// waitsForRoom says whether a claim's cluster has had no room for it. Nothing observes
// that again but the claim itself, so that its report is what there is.
func waitsForRoom(claim *v1alpha1.MachineClaim) bool {
	if claim.Status.VMRef != nil || !claim.DeletionTimestamp.IsZero() {
		return false
	}

	placed := meta.FindStatusCondition(claim.Status.Conditions, v1alpha1.ConditionPlaced)

	return placed != nil && placed.Status == metav1.ConditionFalse && noRoom(placed.Reason)
}

// activatedWithoutRoom says whether a machine that was on standby can't be started because
// its node is full. A new one may find room on another node.
func activatedWithoutRoom(claim *v1alpha1.MachineClaim) bool {
	times := claim.Status.Times
	if times == nil || times.Activated == nil || times.Started != nil {
		return false
	}

	made := meta.FindStatusCondition(claim.Status.Conditions, v1alpha1.ConditionProvisioned)

	return made != nil && made.Status == metav1.ConditionFalse && noRoom(made.Reason)
}

// noRoom says whether a claim waits for room for that reason: its nodes are full, or set aside
// after failures.
func noRoom(reason string) bool { return reason == "NoCapacity" || reason == "NodeSetAside" }

const (
	// quotaPause is how long no claim is made after the namespace's quota refused one,
	// and quotaFreed how long after one of the pool's own claims has gone: the quota hears
	// of it a moment later.
	quotaPause = 30 * time.Second
	quotaFreed = 2 * time.Second
)

// quotaBackoff remembers the pools whose namespaces' quotas are used up. The zero value is
// ready to use.
type quotaBackoff struct {
	mu    sync.Mutex
	pools map[types.NamespacedName]refusal
}

type refusal struct {
	until   time.Time
	claims  int
	message string
}

// note takes down a refusal while there were so many claims.
func (r *quotaBackoff) note(pool types.NamespacedName, message string, claims int, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.pools == nil {
		r.pools = map[types.NamespacedName]refusal{}
	}

	r.pools[pool] = refusal{until: now.Add(quotaPause), claims: claims, message: message}
}

// left gives how long no claim is to be made yet, and the API server's words. A claim that
// has gone since makes it shorter.
func (r *quotaBackoff) left(pool types.NamespacedName, claims int, now time.Time) (time.Duration, string) {
	r.mu.Lock()
	defer r.mu.Unlock()

	known, ok := r.pools[pool]
	if !ok {
		return 0, ""
	}

	if soon := now.Add(quotaFreed); claims < known.claims && soon.Before(known.until) {
		known.until = soon
	}

	known.claims = claims

	if !now.Before(known.until) {
		delete(r.pools, pool)

		return 0, ""
	}

	r.pools[pool] = known

	return known.until.Sub(now), known.message
}

func (r *quotaBackoff) forget(pool types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()

	delete(r.pools, pool)
}
