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

// variableName is the name of the variable with the discovered objects in expressions and templates.
const variableName = "resources"

// Input is the input of the resources phase of one event.
type Input struct {
	// Task is the compiled task file. Required, as are Stamper, ResourceID and Generation.
	Task *task.Task
	// Vars are the variables of expressions and templates, without resources. Run does not change it.
	Vars map[string]any
	// Clients are the clients by the name of their transport, for all transports that the task uses.
	Clients map[string]transport.Client
	// Stamper sets the ownership labels and annotations of objects, and checks them.
	Stamper *stamp.Stamper
	// ResourceID and Generation are the ID and the generation of the API's resource, as the event has them.
	ResourceID string
	Generation int64
	// Deleting is true if the API's resource is being deleted.
	Deleting bool
	// Generations, if set, prevents that a stale event recreates objects that a later event, which this
	// process has handled, has deleted.
	Generations *Generations
	// Clock is the clock of the retention. Default: the real clock.
	Clock clock.PassiveClock
	// Log is the logger for writes. Default: no logs.
	Log *slog.Logger
}

// Run handles the entries of the task. The errors of entries are in their outcomes. Run returns only the
// error of the context.
func Run(ctx context.Context, in Input) (Result, error) {
	r := newRun(in)

	if !r.discoverAll(ctx) {
		return r.result, ctx.Err()
	}

	for i := range r.entries {
		r.handleEntry(ctx, i)
	}

	r.hideDetached()

	return r.result, ctx.Err()
}

// hideDetached removes detached objects from the variables of reports if the resource is being deleted,
// because the deletion does not wait for detached objects. Gates can read detached objects, so that an
// object that contains them, such as their namespace, is not deleted.
func (r *run) hideDetached() {
	if !r.in.Deleting {
		return
	}

	for _, e := range r.entries {
		if e.objects.state == gates.Detached {
			r.removeVariables(e)
		}
	}
}

func newRun(in Input) *run {
	in.Clock = cmp.Or[clock.PassiveClock](in.Clock, clock.RealClock{})
	in.Log = cmp.Or(in.Log, slog.New(slog.DiscardHandler))

	r := &run{in: in, vars: map[string]any{}, isStale: in.Generations.observe(in.ResourceID, in.Generation)}
	r.result.Objects = map[string]any{}
	r.result.Outcomes = make([]Outcome, len(in.Task.Resources))

	maps.Copy(r.vars, in.Vars)
	r.vars[variableName] = r.result.Objects

	for i := range in.Task.Resources {
		resource := &in.Task.Resources[i]

		r.result.Outcomes[i] = Outcome{Resource: resource.Name, Operation: None}
		r.entries = append(r.entries, &entry{Resource: resource, client: in.Clients[resource.Transport]})
	}

	return r
}

// maxGenerations is the maximum number of resources in Generations.
const maxGenerations = 100_000

// Generations stores the highest generation of each resource that this process has handled. It is safe
// for concurrent use. A nil Generations stores nothing. Generations gives no guarantee, because it is
// empty when the process starts. The pipeline also reads the current generation from the API.
type Generations struct {
	mu    sync.Mutex
	cache *lru.Cache
}

// NewGenerations creates an empty Generations.
func NewGenerations() *Generations { return &Generations{cache: lru.New(maxGenerations)} }

// observe stores the generation, and returns true if a later generation was stored before.
func (g *Generations) observe(resourceID string, generation int64) bool {
	if g == nil {
		return false
	}

	g.mu.Lock()
	defer g.mu.Unlock()

	value, _ := g.cache.Get(resourceID)
	if last, _ := value.(int64); last > generation {
		return true
	}

	g.cache.Add(resourceID, generation)

	return false
}
