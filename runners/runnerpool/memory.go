// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runnerpool

import (
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/runners/demand"
)

// memories holds the in-process state of all pools, which neither the API server nor the cache has.
// The zero value is ready to use.
type memories struct {
	mu    sync.Mutex
	pools map[types.NamespacedName]*memory
}

// memory is the in-process state of one pool. It needs no lock, because a pool has one reconcile at
// a time.
type memory struct {
	expectations      expectations
	unconfirmedStarts unconfirmedStarts
	startups          startups
	onlineTimes       onlineTimes
	fullClusters      fullClusters
	outages           outages[string]
	nodeOutages       outages[node]
	quotaBackoff      quotaBackoff
	throttle          throttle
}

const (
	// throttleFactor is the ratio of the wait after a read of a pool's jobs and machines to the
	// duration of the read. maxThrottle is the longest wait.
	throttleFactor = 4
	maxThrottle    = 500 * time.Millisecond
)

// throttle limits how often a pool is reconciled. Each reconcile reads all jobs and machines of the
// pool, and each of a thousand machines triggers reconciles as it progresses. The zero value is
// ready to use.
type throttle struct{ notBefore time.Time }

// recordRead starts the wait after a read that began at start and has ended now.
func (r *throttle) recordRead(start, now time.Time) {
	r.notBefore = now.Add(min(throttleFactor*now.Sub(start), maxThrottle))
}

// remaining returns how long to wait until the next reconcile.
func (r *throttle) remaining(now time.Time) time.Duration {
	return max(min(r.notBefore.Sub(now), maxThrottle), 0)
}

// get returns the state of a pool, which is empty at first.
func (m *memories) get(pool types.NamespacedName) *memory {
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

// forget deletes the state of a deleted pool.
func (m *memories) forget(pool types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()

	delete(m.pools, pool)
}

// recentStartups is how many machines are used to compute the start-up time.
const recentStartups = 15

// startups holds the start-up times of the latest machines. They are lost when the process ends;
// the next process starts with demand.DefaultStartup. The zero value is ready to use.
type startups struct {
	// countedClaims are the existing claims whose start-up times are recorded.
	countedClaims map[types.UID]bool
	durations     []time.Duration
}

// record adds the start-up times of the machines that became ready.
func (s *startups) record(claims []v1alpha1.MachineClaim) {
	counted := map[types.UID]bool{}

	for i := range claims {
		claim := &claims[i]
		if claim.Status.Times == nil || claim.Status.Times.Ready == nil {
			continue
		}

		counted[claim.UID] = true

		if !s.countedClaims[claim.UID] {
			s.durations = append(s.durations, startupDuration(claim))
		}
	}

	s.countedClaims = counted
	s.durations = s.durations[max(len(s.durations)-recentStartups, 0):]
}

// startupDuration returns how long a machine took from its request until it was ready. A machine
// from standby is requested by its activation.
func startupDuration(claim *v1alpha1.MachineClaim) time.Duration {
	requested := claim.CreationTimestamp.Time
	if activated := claim.Status.Times.Activated; activated != nil {
		requested = activated.Time
	}

	return max(claim.Status.Times.Ready.Sub(requested), 0)
}

// median returns the median start-up time of the pool's machines, or demand.DefaultStartup if none is known.
func (s *startups) median() time.Duration {
	if len(s.durations) == 0 {
		return demand.DefaultStartup
	}

	sorted := slices.Sorted(slices.Values(s.durations))

	return sorted[len(sorted)/2] //nolint:mnd // the middle
}

const (
	// fullPeriod is how long a cluster counts as full after a machine waited for capacity on it.
	fullPeriod = time.Minute
	// triedPeriod is how long after that only one waiting claim at a time tries whether the cluster has capacity again.
	triedPeriod = 15 * time.Minute
	// notReadyPeriod is how long a template is unusable, or a node does not respond, until the machines that wait for it
	// are created elsewhere.
	notReadyPeriod = time.Minute
)

// outages holds the time since which this process knows that something cannot be used. The key is the name of a
// template from which no machine can be created, or a node that does not respond. The conditions cannot be used,
// because after a start of the operator they may be as old as the end of the previous process. The zero value is
// ready to use.
type outages[K comparable] struct{ since map[K]time.Time }

// record records whether something is unusable now. It returns the time since which it is unusable, or zero if it
// is usable.
func (r *outages[K]) record(key K, isUnusable bool, now time.Time) time.Time {
	if !isUnusable {
		delete(r.since, key)

		return time.Time{}
	}

	if r.since == nil {
		r.since = map[K]time.Time{}
	}

	if _, isRecorded := r.since[key]; !isRecorded {
		r.since[key] = now
	}

	return r.since[key]
}

// fullClusters holds, by template, when the template's cluster last had no capacity, or its address pool had no
// address. Even if no machine waits any longer, the cluster may still be full. The zero value is ready to use.
type fullClusters struct{ templates map[string]time.Time }

// record records the templates whose claims wait for capacity or an address. If a claim waits for an address,
// it also records the templates with the same address pool.
func (r *fullClusters) record(claims []v1alpha1.MachineClaim, sources []source, now time.Time) {
	if r.templates == nil {
		r.templates = map[string]time.Time{}
	}

	for i := range claims {
		name, needsAddress := claims[i].Spec.TemplateRef.Name, isWaitingForAddress(&claims[i])
		if !needsAddress && !isWaitingForCapacity(&claims[i]) {
			continue
		}

		r.templates[name] = now

		own := slices.IndexFunc(sources, func(s source) bool { return s.name == name })
		if own < 0 || !needsAddress {
			continue
		}

		for j := range sources {
			if sources[own].sharesAddressPool(&sources[j]) {
				r.templates[sources[j].name] = now
			}
		}
	}
}

// listFull returns two groups of templates: full has those whose cluster had no capacity within fullPeriod, and
// how much longer they count as full; wasFull has those whose cluster had none in the triedPeriod before that.
func (r *fullClusters) listFull(now time.Time) (full map[string]time.Duration, wasFull map[string]bool) {
	full, wasFull = map[string]time.Duration{}, map[string]bool{}

	for template, timestamp := range r.templates {
		switch age := now.Sub(timestamp); {
		case age < fullPeriod:
			full[template] = fullPeriod - age
		case age < fullPeriod+triedPeriod:
			wasFull[template] = true
		default:
			delete(r.templates, template)
		}
	}

	return full, wasFull
}

// isWaitingForCapacity reports whether a claim waits for capacity of its cluster. The claim's own
// condition is the only source of this information.
func isWaitingForCapacity(claim *v1alpha1.MachineClaim) bool {
	return v1alpha1.IsNoCapacity(getPlacementProblem(claim))
}

// isWaitingForNamesake reports whether a claim waits for the end of the machine of an earlier claim of its name.
func isWaitingForNamesake(claim *v1alpha1.MachineClaim) bool {
	return v1alpha1.CurrentReason(getPlacementProblem(claim)) == hypervisor.ReasonNamesake
}

// isWaitingForAddress reports whether a claim without a machine waits for an address of its template's pool. The
// networking area writes the condition. With other reasons, such as AddressConflict, the claim has addresses of its own,
// and a machine with them may run a job.
func isWaitingForAddress(claim *v1alpha1.MachineClaim) bool {
	if claim.Status.VMRef != nil || !claim.DeletionTimestamp.IsZero() {
		return false
	}

	allocated := meta.FindStatusCondition(claim.Status.Conditions, v1alpha1.ConditionAddressAllocated)
	if allocated == nil || allocated.Status != metav1.ConditionFalse {
		return false
	}

	switch v1alpha1.CurrentReason(allocated.Reason) {
	case "PoolExhausted", "PoolInvalid", "PoolsOverlap", "AddressesNotRead":
		return true
	default:
		return false
	}
}

func isStarted(claim *v1alpha1.MachineClaim) bool {
	return claim.Status.Times != nil && claim.Status.Times.Started != nil
}

// getPlacementProblem returns the reason why a claim that is not being deleted is not placed, or "".
func getPlacementProblem(claim *v1alpha1.MachineClaim) string {
	if claim.Status.VMRef != nil || !claim.DeletionTimestamp.IsZero() {
		return ""
	}

	if placed := meta.FindStatusCondition(claim.Status.Conditions, v1alpha1.ConditionPlaced); placed != nil &&
		placed.Status == metav1.ConditionFalse {
		return placed.Reason
	}

	return ""
}

// isActivatedWithoutCapacity reports whether a machine from standby cannot start because its node
// is full. A new machine may fit on another node.
func isActivatedWithoutCapacity(claim *v1alpha1.MachineClaim) bool {
	times := claim.Status.Times
	if times == nil || times.Activated == nil || times.Started != nil {
		return false
	}

	provisioned := meta.FindStatusCondition(claim.Status.Conditions, v1alpha1.ConditionProvisioned)

	return provisioned != nil && provisioned.Status == metav1.ConditionFalse && v1alpha1.IsNoCapacity(provisioned.Reason)
}

const (
	// quotaBackoffPeriod is how long no claim is created after the namespace's quota rejected one.
	// quotaRecheckDelay replaces it after one of the pool's claims was deleted, because the quota's
	// usage is updated a little later.
	quotaBackoffPeriod = 30 * time.Second
	quotaRecheckDelay  = 2 * time.Second
)

// quotaBackoff holds the back-off after the namespace's quota rejected a claim. The zero value is
// ready to use.
type quotaBackoff struct {
	until   time.Time
	claims  int
	message string
}

// record starts the back-off after a rejection, at the given number of claims.
func (r *quotaBackoff) record(message string, claims int, now time.Time) {
	*r = quotaBackoff{until: now.Add(quotaBackoffPeriod), claims: claims, message: message}
}

// remaining returns how long no claim may be created, and the API server's message. If a claim was
// deleted since the last call, it shortens the back-off to quotaRecheckDelay.
func (r *quotaBackoff) remaining(claims int, now time.Time) (time.Duration, string) {
	if soon := now.Add(quotaRecheckDelay); claims < r.claims && soon.Before(r.until) {
		r.until = soon
	}

	r.claims = claims

	if !now.Before(r.until) {
		*r = quotaBackoff{}

		return 0, ""
	}

	return r.until.Sub(now), r.message
}
