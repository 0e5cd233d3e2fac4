// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/json"

	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/conditions"
	"github.com/hyperfleet/hyperfleet/platform/entity"
)

// entry is what is known of a resource.
type entry struct {
	id, kind, href string
	generation     int32
	owner          *openapi.ResourceReference

	// conditioned says that it has the condition Reconciled; the next three are of it.
	conditioned, reconciled bool
	observed                int32
	// updated is its last_updated_time, or when this process saw it if that is earlier:
	// clocks need not agree.
	updated time.Time
	// said is last_updated_time as the API said it.
	said time.Time

	// whole is the resource as JSON; only where expressions need it.
	whole []byte
	// asked is when the request began whose answer this is, and answered when it was there.
	asked, answered time.Time

	// sentGeneration and sentTime are of the last event from this process.
	sentGeneration int32
	sentTime       time.Time
	// aside is a generation whose event nobody can handle; 0: none.
	aside int32

	// queued and busy: waiting to be sent, being sent. again: looked at anew after that.
	queued, busy, again bool
	// failures since it was last sent, and when it may be tried again.
	failures  int
	notBefore time.Time
}

// resource decodes the resource for expressions, with whole numbers as int64.
func (e *entry) resource() (map[string]any, error) {
	var out map[string]any
	if err := json.Unmarshal(e.whole, &out); err != nil {
		return nil, fmt.Errorf("read resource %s: %w", e.id, err)
	}

	return out, nil
}

// unsend has it count as never sent.
func (e *entry) unsend() { e.sentGeneration, e.sentTime = 0, time.Time{} }

// index is what is known of all resources. Its entries are read and written with mu held.
type index struct {
	mu    sync.Mutex
	by    map[string]*entry
	whole bool
	// doubted are to be read again before anything is sent of them.
	doubted map[string]bool
}

func newIndex(whole bool) *index {
	return &index{by: map[string]*entry{}, whole: whole, doubted: map[string]bool{}}
}

// put notes a resource as it was at some time since asked, unless a later answer is known.
func (b *index) put(r *openapi.Resource, asked, now time.Time) error {
	var raw []byte

	if b.whole {
		var err error
		if raw, err = json.Marshal(r); err != nil {
			return fmt.Errorf("keep resource %s: %w", r.Id, err)
		}
	}

	b.mu.Lock()
	defer b.mu.Unlock()

	e := b.by[r.Id]

	switch {
	case e == nil:
		e = &entry{id: strings.Clone(r.Id)}
		b.by[e.id] = e
	case asked.Before(e.asked):
		return nil
	}

	e.kind, e.href, e.generation, e.owner = r.Kind, r.Href, r.Generation, r.OwnerReferences
	e.whole, e.asked, e.answered = raw, asked, now
	e.observe(r.Status.Conditions, now)

	return nil
}

func (e *entry) observe(all []openapi.ResourceCondition, now time.Time) {
	c, found := conditions.Condition(all, entity.Reconciled)
	e.conditioned, e.reconciled, e.observed = found, c.Status == conditions.True, c.ObservedGeneration

	switch {
	case !found:
		e.updated, e.said = time.Time{}, time.Time{}
	case !e.said.Equal(c.LastUpdatedTime):
		e.said, e.updated = c.LastUpdatedTime, c.LastUpdatedTime
		if now.Before(e.updated) {
			e.updated = now
		}
	}
}

// with does something with the entry of a resource, if it is known.
func (b *index) with(id string, do func(e *entry)) {
	b.mu.Lock()
	defer b.mu.Unlock()

	if e := b.by[id]; e != nil {
		do(e)
	}
}

// drop forgets a resource, unless a later answer is known.
func (b *index) drop(id string, asked time.Time) {
	b.with(id, func(e *entry) {
		if !asked.Before(e.asked) {
			delete(b.by, id)
		}
	})
}

// missing gives what is known between two ids, the last one included, that a list of them
// did not have. An empty last is the end.
func (b *index) missing(after, last string, listed []string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()

	var out []string

	for id := range b.by {
		if id > after && (last == "" || id <= last) && !slices.Contains(listed, id) {
			out = append(out, id)
		}
	}

	return out
}

// takeDoubted gives what is to be read again, and has it count as read.
func (b *index) takeDoubted() []string {
	b.mu.Lock()
	defer b.mu.Unlock()

	out := slices.Collect(maps.Keys(b.doubted))
	clear(b.doubted)

	return out
}

// forget has all count as never sent.
func (b *index) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()

	for _, e := range b.by {
		e.unsend()
	}
}

func (b *index) size() int {
	b.mu.Lock()
	defer b.mu.Unlock()

	return len(b.by)
}

func (b *index) ids() []string {
	b.mu.Lock()
	defer b.mu.Unlock()

	return slices.AppendSeq(make([]string, 0, len(b.by)), maps.Keys(b.by))
}
