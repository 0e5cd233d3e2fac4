// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

const (
	// After exclusionThreshold failures in a row, no machine of the template is placed on the node.
	exclusionThreshold = 3
	// excludeAtOnce is the threshold of storages and devices. The next clone would fill a full storage again.
	excludeAtOnce = 1
	// initialExclusion is the duration of the first exclusion. The duration doubles with each failed probe,
	// up to maxExclusion.
	initialExclusion = time.Minute
	maxExclusion     = 15 * time.Minute
)

// reasonNodeExcluded is the reason of a machine whose node was excluded before the machine was created.
const reasonNodeExcluded = "NodeExcluded"

// breaker is a circuit breaker: it excludes a target (see breakerTarget) after machines have failed there. It
// excludes a template on one node only, because another template may work on the same node and a broken
// template must not block the others. When an exclusion is over, one machine is placed there as a probe.
//
// If a template is excluded on all of its nodes, machines are placed there nevertheless. The nodes are not
// the cause in that case, and claims and pools have their own back-off. The state is kept in memory only,
// so a new process has to observe the failures again. The clock must be set.
type breaker struct {
	clock clock.PassiveClock

	mu       sync.Mutex
	failures map[breakerTarget]*targetFailures
}

// breakerTarget is what the breaker excludes together: a template on a node, a storage, or the devices of one
// kind on a node. The name of a storage that is not shared is NODE/STORAGE.
type breakerTarget struct {
	node     string
	template int
	storage  string
	device   string
}

type targetFailures struct {
	count    int
	duration time.Duration
	// until is the time from which a probe is allowed. It is zero while the target is not excluded.
	until time.Time
	// admittedOwners are the owners of machines that may use the target despite the exclusion: the owner of
	// the probe, or all owners if no other target is available.
	admittedOwners map[string]bool
	// cause is the error text of the latest failure.
	cause string
}

func newTemplateTarget(node string, template int) breakerTarget {
	return breakerTarget{node: node, template: template}
}

func newStorageTarget(storage string) breakerTarget { return breakerTarget{storage: storage} }

func newDeviceTarget(node, device string) breakerTarget {
	return breakerTarget{node: node, device: device}
}

// describe returns the name of the target for messages.
func (t breakerTarget) describe() string {
	if t.device != "" {
		return fmt.Sprintf("device %s on node %s", t.device, t.node)
	}

	if t.storage != "" {
		return "storage " + t.storage
	}

	return fmt.Sprintf("template %d on node %s", t.template, t.node)
}

// recordFailure counts a failure of a machine, and excludes the target if there were at least threshold failures.
func (b *breaker) recordFailure(target breakerTarget, cause string, threshold int) {
	b.mu.Lock()
	defer b.mu.Unlock()

	if b.failures == nil {
		b.failures = map[breakerTarget]*targetFailures{}
	}

	s := b.failures[target]
	if s == nil {
		s = &targetFailures{}
		b.failures[target] = s
	}

	s.count++
	s.cause = cause

	// A machine that started before the exclusion does not extend the exclusion.
	isExcluded := len(s.admittedOwners) == 0 && b.clock.Now().Before(s.until)
	if isExcluded || s.count < threshold {
		return
	}

	s.duration = min(max(2*s.duration, initialExclusion), maxExclusion) //nolint:mnd // the duration doubles
	s.until, s.admittedOwners = b.clock.Now().Add(s.duration), nil
}

// recordSuccess removes the failures of the targets after a machine was created there.
func (b *breaker) recordSuccess(targets ...breakerTarget) {
	b.mu.Lock()
	defer b.mu.Unlock()

	for _, target := range targets {
		delete(b.failures, target)
	}
}

// exclusionReason returns the reason why no machine of the owner may use one of the targets, or "" if it may
// use all of them.
func (b *breaker) exclusionReason(owner string, targets ...breakerTarget) string {
	b.mu.Lock()
	defer b.mu.Unlock()

	now := b.clock.Now()

	for _, target := range targets {
		s := b.failures[target]
		if s == nil || s.until.IsZero() || s.admittedOwners[owner] || !now.Before(s.until) {
			continue
		}

		return s.describe(target)
	}

	return ""
}

func (s *targetFailures) describe(target breakerTarget) string {
	times := "once"
	if s.count > 1 {
		times = fmt.Sprintf("%d times in a row", s.count)
	}

	until := s.until.UTC().Format(time.TimeOnly + "Z")

	return fmt.Sprintf("%s failed %s and is excluded until %s: %s", target.describe(), times, until, s.cause)
}

// recordPlacement records that the owner's machine uses the targets. If the machine is a probe,
// because the exclusion is over, the exclusion is extended for all other owners until the probe has a
// result.
func (b *breaker) recordPlacement(owner string, targets ...breakerTarget) {
	b.mu.Lock()
	defer b.mu.Unlock()

	now := b.clock.Now()

	for _, target := range targets {
		s := b.failures[target]
		if s == nil || s.until.IsZero() {
			continue
		}

		if s.admittedOwners == nil {
			s.admittedOwners = map[string]bool{}
		}

		s.admittedOwners[owner] = true

		if !now.Before(s.until) {
			s.until = now.Add(s.duration)
		}
	}
}

// listExclusions returns a description of each exclusion that affects a node.
func (b *breaker) listExclusions(node string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()

	var out []string

	for target, s := range b.failures {
		isShared := target.storage != "" && !strings.Contains(target.storage, "/")
		isAffected := target.node == node || strings.HasPrefix(target.storage, node+"/") || isShared
		if isAffected && !s.until.IsZero() {
			out = append(out, s.describe(target))
		}
	}

	slices.Sort(out)

	return out
}

// recordTargetFailure counts a failure for the machine's template or storage, unless the kind of the failure says that
// another template or storage would have failed in the same way. storage is the storage that was written, and "" if it is
// not the one of the machine's disks.
func (p *Provider) recordTargetFailure(m *machine, storage string, kind hypervisor.Kind, reason, text string) {
	if storage != "" && reason == reasonStorageFull {
		p.breaker.recordFailure(newStorageTarget(storage), text, excludeAtOnce)

		return
	}

	switch kind {
	case "", hypervisor.UnknownOutcome, hypervisor.NoCapacity:
		if m.origin.template == 0 {
			return // an earlier process created the machine, so its template is unknown
		}

		p.breaker.recordFailure(newTemplateTarget(m.node, m.origin.template), text, exclusionThreshold)
	case hypervisor.NotFound, hypervisor.Busy, hypervisor.Rejected, hypervisor.IDTaken, hypervisor.NotOwned, hypervisor.Unavailable:
	}
}

// breakerTargets returns what a machine uses, for the breaker.
func (m *machine) breakerTargets() []breakerTarget {
	return append(m.deviceTargets(), newTemplateTarget(m.node, m.origin.template), newStorageTarget(m.origin.storage))
}
