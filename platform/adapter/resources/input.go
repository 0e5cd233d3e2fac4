// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"sync"

	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/hyperfleet/hyperfleet/platform/adapter/gates"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
	"github.com/hyperfleet/hyperfleet/platform/stamp"
)

// variable is how expressions and templates call what was found.
const variable = "resources"

// Input is one event's work.
type Input struct {
	// Task says what is kept. Required, as are Stamper, ResourceID and Generation.
	Task *task.Task
	// Vars are what expressions and templates see, but for resources. It is not changed.
	Vars map[string]any
	// Clients by the name of their transport; those that the task uses are there.
	Clients map[string]transport.Client
	// Stamper marks the adapter's objects and knows them again.
	Stamper *stamp.Stamper
	// ResourceID and Generation are of the API's resource, as the event has them.
	ResourceID string
	Generation int64
	// Deleting says that the API's resource is being deleted.
	Deleting bool
	// Seen, if there, keeps events that are older than one that was handled here from
	// making again what that one has removed.
	Seen *Generations
	// Clock of retention. Default: the real one.
	Clock clock.PassiveClock
	// Log of what is done to objects. Default: none.
	Log *slog.Logger
}

// Run handles the task's entries. What went wrong with an entry is in its outcome; the
// error is the context's end.
func Run(ctx context.Context, in Input) (Result, error) {
	r := newRun(in)

	if !r.discoverAll(ctx) {
		return r.result, ctx.Err()
	}

	for i := range r.entries {
		r.handle(ctx, i)
	}

	r.handedOver()

	return r.result, ctx.Err()
}

// handedOver takes detached objects out of what reports see of a deletion: it does not wait
// for them. Gates have seen them all the while, so that nothing they are in, such as their
// namespace, is deleted with them.
func (r *run) handedOver() {
	if !r.in.Deleting {
		return
	}

	for _, e := range r.entries {
		if e.found.state == gates.Detached {
			r.forget(e)
		}
	}
}

func newRun(in Input) *run {
	in.Clock = cmp.Or[clock.PassiveClock](in.Clock, clock.RealClock{})
	in.Log = cmp.Or(in.Log, slog.New(slog.DiscardHandler))

	r := &run{in: in, vars: map[string]any{}, stale: in.Seen.stale(in.ResourceID, in.Generation)}
	r.result.Objects = map[string]any{}
	r.result.Outcomes = make([]Outcome, len(in.Task.Resources))

	maps.Copy(r.vars, in.Vars)
	r.vars[variable] = r.result.Objects

	for i := range in.Task.Resources {
		resource := &in.Task.Resources[i]

		r.result.Outcomes[i] = Outcome{Resource: resource.Name, Operation: None}
		r.entries = append(r.entries, &entry{Resource: resource, client: in.Clients[resource.Transport]})
	}

	return r
}

// maxSeen bounds how many resources Generations remembers.
const maxSeen = 100_000

// Generations remembers the highest generation of each resource that was handled by this
// process. It may be used from any goroutine, and nil remembers nothing. It is a help and
// no promise: a process that starts knows of none, and the API is asked there.
type Generations struct {
	mu   sync.Mutex
	seen *lru.Cache
}

// NewGenerations remembers.
func NewGenerations() *Generations { return &Generations{seen: lru.New(maxSeen)} }

// stale notes the generation, and says whether a later one was noted before.
func (g *Generations) stale(resourceID string, generation int64) bool {
	if g == nil {
		return false
	}

	g.mu.Lock()
	defer g.mu.Unlock()

	noted, _ := g.seen.Get(resourceID)
	if last, _ := noted.(int64); last > generation {
		return true
	}

	g.seen.Add(resourceID, generation)

	return false
}
