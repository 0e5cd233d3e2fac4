// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unique"

	"github.com/hyperfleet/hyperfleet/api/exactjson"
	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/conditions"
	"github.com/hyperfleet/hyperfleet/platform/entity"
)

// entry is what Sentinel knows about a resource. A fleet has many of them, so what several have in common exists once.
type entry struct {
	id   string
	kind unique.Handle[string]
	// hrefStart is the resource's href, without the ID if endsInID is true.
	hrefStart  unique.Handle[string]
	endsInID   bool
	generation int32
	owner      *openapi.ResourceReference

	// hasReconciled is true if the resource has the condition Reconciled. isReconciled and
	// observedGeneration are the status and observed generation of that condition.
	hasReconciled, isReconciled bool
	observedGeneration          int32
	// updatedTime is the condition's last_updated_time, or the time at which this process first saw it,
	// whichever is earlier, because clocks may differ.
	updatedTime time.Time
	// apiUpdatedTime is last_updated_time as the API returned it.
	apiUpdatedTime time.Time

	// json is the resource as JSON. It is set only if expressions need it.
	json []byte
	*readTimes

	// sentGeneration and sentTime are the generation and the time of the last event that this process sent.
	sentGeneration int32
	sentTime       time.Time
	// excludedGeneration is a generation whose event no adapter can handle. It is 0 if there is
	// none.
	excludedGeneration int32
	// isRestored is true if the API may have returned to an earlier state, in which the same generation has
	// another content, and no event was sent since then. hasDroppedReports is true if the resource's condition says that
	// the API has dropped its reports.
	isRestored, hasDroppedReports bool

	// isQueued is true while the resource is in the queue, isSending while its event is being sent.
	// If needsRecheck is true, the resource is evaluated again after that.
	isQueued, isSending, needsRecheck bool
	// failures is the number of failed attempts since the last event, retryTime the time of the
	// next attempt.
	failures  int
	retryTime time.Time
}

// readTimes are the times of the request that returned a state: requestTime is when it began, responseTime when its response
// arrived.
type readTimes struct{ requestTime, responseTime time.Time }

// href returns the resource's href.
func (e *entry) href() string {
	if e.endsInID {
		return e.hrefStart.Value() + e.id
	}

	return e.hrefStart.Value()
}

// resource decodes the resource for expressions. Numbers keep their value.
func (e *entry) resource() (map[string]any, error) {
	var out map[string]any
	if err := exactjson.Unmarshal(e.json, &out); err != nil {
		return nil, fmt.Errorf("decode resource %s: %w", e.id, err)
	}

	return out, nil
}

// resetSent resets the last event, as if none had been sent.
func (e *entry) resetSent() { e.sentGeneration, e.sentTime = 0, time.Time{} }

// index has what Sentinel knows about all resources. Entries may only be accessed while mu is held.
type index struct {
	mu            sync.Mutex
	entries       map[string]*entry
	needsResource bool
	// isRestored is true while all resources are listed because the API may have gone back to an earlier state.
	isRestored bool
	// stale are the resources that have to be read again before an event is sent for them.
	stale map[string]bool
	// lastRead are the times of the last request that returned resources.
	lastRead *readTimes
}

func newIndex(whole bool) *index {
	return &index{entries: map[string]*entry{}, needsResource: whole, stale: map[string]bool{}}
}

// put stores the state of a resource that a request returned. It does nothing if the index has the
// state of a later request.
func (b *index) put(r *openapi.Resource, requestTime, now time.Time) error {
	var raw []byte

	if b.needsResource {
		var err error
		if raw, err = json.Marshal(r); err != nil {
			return fmt.Errorf("encode resource %s: %w", r.Id, err)
		}
	}

	b.mu.Lock()
	defer b.mu.Unlock()

	e := b.entries[r.Id]

	switch {
	case e == nil:
		e = &entry{id: strings.Clone(r.Id), isRestored: b.isRestored}
	case requestTime.Before(e.requestTime):
		return nil
	case r.Generation < e.generation:
		// The result of an event that is being sent is ignored, because it belongs to the previous entry.
		e = &entry{id: e.id, isRestored: true}
	}

	b.entries[e.id] = e

	if b.lastRead == nil || !b.lastRead.requestTime.Equal(requestTime) || !b.lastRead.responseTime.Equal(now) {
		b.lastRead = &readTimes{requestTime, now}
	}

	hrefStart, endsInID := strings.CutSuffix(r.Href, e.id)
	e.hrefStart, e.endsInID = unique.Make(hrefStart), endsInID
	e.kind, e.generation, e.owner, e.json, e.readTimes = unique.Make(r.Kind), r.Generation, r.OwnerReferences, raw, b.lastRead
	e.observe(r.Status.Conditions, now)

	return nil
}

func (e *entry) observe(all []openapi.ResourceCondition, now time.Time) {
	c, found := conditions.Condition(all, entity.Reconciled)
	e.hasReconciled, e.isReconciled, e.observedGeneration = found, c.Status == conditions.True, c.ObservedGeneration

	// Also a process that was started after the restore notices it.
	hasDroppedReports := c.Reason == conditions.ReasonDatabaseRestored
	e.isRestored = e.isRestored || hasDroppedReports && !e.hasDroppedReports
	e.hasDroppedReports = hasDroppedReports

	switch {
	case !found:
		e.updatedTime, e.apiUpdatedTime = time.Time{}, time.Time{}
	case !e.apiUpdatedTime.Equal(c.LastUpdatedTime):
		e.apiUpdatedTime, e.updatedTime = c.LastUpdatedTime, c.LastUpdatedTime
		if now.Before(e.updatedTime) {
			e.updatedTime = now
		}
	}
}

// update calls do with the entry of a resource, if the index has one.
func (b *index) update(id string, do func(e *entry)) {
	b.mu.Lock()
	defer b.mu.Unlock()

	if e := b.entries[id]; e != nil {
		do(e)
	}
}

// remove removes a resource, unless the index has the state of a later request.
func (b *index) remove(id string, requestTime time.Time) {
	b.update(id, func(e *entry) {
		if !requestTime.Before(e.requestTime) {
			delete(b.entries, id)
		}
	})
}

// findMissing returns the known IDs after afterID, up to and including lastID, that are not among
// the listed IDs. If lastID is empty, the range has no end.
func (b *index) findMissing(afterID, lastID string, listedIDs []string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()

	var out []string

	for id := range b.entries {
		if id > afterID && (lastID == "" || id <= lastID) && !slices.Contains(listedIDs, id) {
			out = append(out, id)
		}
	}

	return out
}

// takeStale returns the stale resources and clears the set.
func (b *index) takeStale() []string {
	b.mu.Lock()
	defer b.mu.Unlock()

	out := slices.Collect(maps.Keys(b.stale))
	clear(b.stale)

	return out
}

// resetAllSent resets the last event of all resources.
func (b *index) resetAllSent() {
	b.mu.Lock()
	defer b.mu.Unlock()

	for _, e := range b.entries {
		e.resetSent()
	}
}

// beginRestore forgets all resources, and lets those that are listed from now on count as restored.
func (b *index) beginRestore() {
	b.mu.Lock()
	defer b.mu.Unlock()

	clear(b.entries)
	clear(b.stale)

	b.isRestored = true
}

// endRestore is called when all resources have been listed.
func (b *index) endRestore() {
	b.mu.Lock()
	defer b.mu.Unlock()

	b.isRestored = false
}

// countPending returns the number of resources whose event waits in the queue, is being sent, or could not be
// sent.
func (b *index) countPending() int {
	b.mu.Lock()
	defer b.mu.Unlock()

	count := 0

	for _, e := range b.entries {
		if e.isQueued || e.isSending || e.failures > 0 {
			count++
		}
	}

	return count
}

func (b *index) size() int {
	b.mu.Lock()
	defer b.mu.Unlock()

	return len(b.entries)
}

func (b *index) ids() []string {
	b.mu.Lock()
	defer b.mu.Unlock()

	return slices.AppendSeq(make([]string, 0, len(b.entries)), maps.Keys(b.entries))
}
