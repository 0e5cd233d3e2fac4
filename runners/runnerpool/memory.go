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

// memories are what the process remembers of pools beside what the cache shows. The zero
// value is ready to use.
type memories struct {
	mu    sync.Mutex
	pools map[types.NamespacedName]*memory
}

// memory is what is remembered of one pool. It needs no lock, for one pass at a time has the
// pool.
type memory struct {
	expectations      expectations
	unconfirmedStarts unconfirmedStarts
	startups          startups
	fullClusters      fullClusters
	quotaBackoff      quotaBackoff
	rest              rest
}

const (
	// restShare is how many times longer than a look at a pool's jobs and machines the pause after
	// it is, and maxRest the longest one.
	restShare = 4
	maxRest   = 500 * time.Millisecond
)

// rest keeps looks at a pool apart: each goes over all its jobs and machines, and each of a
// thousand machines asks for looks as it goes on. The zero value is ready to use.
type rest struct{ until time.Time }

// looked notes a look that began at the time and has ended now.
func (r *rest) looked(begun, now time.Time) {
	r.until = now.Add(min(restShare*now.Sub(begun), maxRest))
}

// left is how long there is to be no further look.
func (r *rest) left(now time.Time) time.Duration {
	return max(min(r.until.Sub(now), maxRest), 0)
}

// of gives the pool's memory, an empty one at first.
func (m *memories) of(pool types.NamespacedName) *memory {
	m.mu.Lock()
	defer m.mu.Unlock()

	if m.pools == nil {
		m.pools = map[types.NamespacedName]*memory{}
	}

	if m.pools[pool] == nil {
		m.pools[pool] = &memory{}
	}

	return m.pools[pool]
}

// forget drops a pool that is gone.
func (m *memories) forget(pool types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()

	delete(m.pools, pool)
}

// recentStartups is how many machines the start-up time is taken from.
const recentStartups = 15

// startups remember how long the latest machines took to start. They are lost with the
// process, which then begins with demand.DefaultStartup. The zero value is ready to use.
type startups struct {
	// seen are the claims that were counted and are still there.
	seen map[types.UID]bool
	took []time.Duration
}

// note counts the machines that have become ready.
func (s *startups) note(claims []v1alpha1.MachineClaim) {
	seen := map[types.UID]bool{}

	for i := range claims {
		claim := &claims[i]
		if claim.Status.Times == nil || claim.Status.Times.Ready == nil {
			continue
		}

		seen[claim.UID] = true

		if !s.seen[claim.UID] {
			s.took = append(s.took, startupOf(claim))
		}
	}

	s.seen = seen
	s.took = s.took[max(len(s.took)-recentStartups, 0):]
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
func (s *startups) median() time.Duration { return demand.Median(s.took) }

// fullFor is how long a cluster counts as full after a machine waited for room on it.
const fullFor = time.Minute

// fullClusters remember when which templates' clusters had no room: a machine that no longer
// waits there does not mean that there is room. The zero value is ready to use.
type fullClusters struct{ templates map[string]time.Time }

// note takes down which of the claims wait for room.
func (r *fullClusters) note(claims []v1alpha1.MachineClaim, now time.Time) {
	for i := range claims {
		if !waitsForRoom(&claims[i]) {
			continue
		}

		if r.templates == nil {
			r.templates = map[string]time.Time{}
		}

		r.templates[claims[i].Spec.TemplateRef.Name] = now
	}
}

// full gives the templates whose clusters had no room lately.
func (r *fullClusters) full(now time.Time) map[string]bool {
	out := map[string]bool{}

	for template, at := range r.templates {
		if now.Sub(at) < fullFor {
			out[template] = true
		} else {
			delete(r.templates, template)
		}
	}

	return out
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

// quotaBackoff remembers that the namespace's quota is used up. The zero value is ready to use.
type quotaBackoff struct {
	until   time.Time
	claims  int
	message string
}

// note takes down a refusal while there were so many claims.
func (r *quotaBackoff) note(message string, claims int, now time.Time) {
	*r = quotaBackoff{until: now.Add(quotaPause), claims: claims, message: message}
}

// left gives how long no claim is to be made yet, and the API server's words. A claim that
// has gone since makes it shorter.
func (r *quotaBackoff) left(claims int, now time.Time) (time.Duration, string) {
	if soon := now.Add(quotaFreed); claims < r.claims && soon.Before(r.until) {
		r.until = soon
	}

	r.claims = claims

	if !now.Before(r.until) {
		*r = quotaBackoff{}

		return 0, ""
	}

	return r.until.Sub(now), r.message
}
