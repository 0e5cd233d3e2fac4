// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"

	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/platform/adapter/gates"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
	"github.com/hyperfleet/hyperfleet/platform/stamp"
)

// variableName is the name of the variable with the discovered objects in expressions and templates.
const variableName = "resources"

// maxAttempts is the maximum number of attempts to write an entry whose object another program changes at
// the same time. After that, the event is delivered again.
const maxAttempts = 3

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
	// ReadGeneration reads the generation of the API's resource again. Run calls it only if an object or Generations
	// has a later generation than the event: either the event is stale, or the API's database was restored from a
	// backup, or somebody has edited the object. Required.
	ReadGeneration func(context.Context) (int64, error)
	// Generations, if set, prevents that a stale event recreates objects that a later event, which this
	// process has handled, has deleted.
	Generations *Generations
	// Kinds, if set, has the kinds of which the adapter may have objects, in addition to those of the entries. Run adds
	// the kinds that it finds.
	Kinds *Kinds
	// Clock is the clock of the retention. Default: the real clock.
	Clock clock.PassiveClock
	// Log is the logger for writes. Default: no logs.
	Log *slog.Logger
}

// run is the state of the resources phase of one event.
type run struct {
	in      Input
	vars    map[string]any
	entries []*newEntry
	result  Result
	// removed are the leftovers of entries that the task file no longer has.
	removed []leftover
	// hasFailed is true if writing an entry has failed. Later entries are then not written.
	hasFailed bool
	// hasLater is true if this process has handled a later generation before.
	hasLater bool
	// isConfirmed is true if the generation was read from the API again. isStale is then true if the API has another
	// generation than the event.
	isConfirmed, isStale bool
}

// entry is one entry of the task's resources with its discovered objects.
type newEntry struct {
	*task.Resource

	client transport.Client

	// query selects the objects of the entry.
	query transport.Query

	objects objectSet
	// leftovers are objects of the entry that the manifest no longer renders.
	leftovers []leftover
	// gates are the values of the last decision.
	gates gates.State
	// isLive is true if objects is the result of a live read.
	isLive bool
}

// Run handles the entries of the task. The errors of entries are in their outcomes. Run returns only the
// error of the context.
func Run(ctx context.Context, in Input) (Result, error) {
	r := newRun(in)

	if r.hasLater {
		if err := r.confirmEvent(ctx); err != nil {
			return r.result, err
		}
	}

	if !r.discoverAll(ctx) {
		return r.result, ctx.Err()
	}

	for i := range r.entries {
		r.handleEntry(ctx, i)
	}

	r.removeRemoved(ctx)

	r.hideDetached()

	return r.result, ctx.Err()
}

func newRun(in Input) *run {
	in.Clock = cmp.Or[clock.PassiveClock](in.Clock, clock.RealClock{})
	in.Log = cmp.Or(in.Log, slog.New(slog.DiscardHandler))

	r := &run{in: in, vars: map[string]any{}, hasLater: in.Generations.hasLater(in.ResourceID, in.Generation)}
	r.result.Objects = map[string]any{}
	r.result.Outcomes = make([]Outcome, len(in.Task.Resources))

	maps.Copy(r.vars, in.Vars)
	r.vars[variableName] = r.result.Objects

	for i := range in.Task.Resources {
		resource := &in.Task.Resources[i]

		r.result.Outcomes[i] = Outcome{Resource: resource.Name, Operation: None}
		r.entries = append(r.entries, &newEntry{Resource: resource, client: in.Clients[resource.Transport]})
	}

	return r
}

// confirmEvent reads the generation of the resource from the API again, once for each event, and decides whether the
// event is stale. If the API has the event's generation, it does not matter what objects or this process remember.
func (r *run) confirmEvent(ctx context.Context) error {
	if r.isConfirmed {
		return nil
	}

	generation, err := r.in.ReadGeneration(ctx)
	if err != nil {
		return fmt.Errorf("read generation of the resource again: %w", err)
	}

	r.isConfirmed, r.isStale = true, generation != r.in.Generation

	if r.hasLater && !r.isStale {
		r.in.Log.WarnContext(ctx, "the API has an earlier generation of the resource than this process has handled: "+
			"its database was restored from a backup", "resourceId", r.in.ResourceID, "generation", generation)
		r.in.Generations.reset(r.in.ResourceID, generation)
	}

	return nil
}

// discoverAll discovers the objects of all entries before any gate is evaluated. If the discovery of one
// entry fails, it returns false and no entry is handled, because gates may read the failed entry.
func (r *run) discoverAll(ctx context.Context) bool {
	for i, e := range r.entries {
		err := r.setQuery(ctx, e)
		if err == nil {
			err = r.discover(ctx, e, transport.Cached)
		}

		if err == nil && i == len(r.entries)-1 {
			err = r.findLeftovers(ctx)
		}

		if err == nil {
			continue
		}

		for j := range r.result.Outcomes {
			r.result.Outcomes[j].Reason = ReasonEarlierFailed
			r.result.Outcomes[j].Message = fmt.Sprintf("discovery of %s failed", e.Name)
		}

		r.result.Outcomes[i].setFailure(ReasonDiscovery, err)

		return false
	}

	return true
}

// handleEntry decides about one entry and executes the decision.
func (r *run) handleEntry(ctx context.Context, i int) {
	e, out := r.entries[i], &r.result.Outcomes[i]

	var decision gates.Decision

	for attempts := 0; ; {
		var err error
		if decision, err = r.decide(ctx, e, out); err != nil {
			out.setFailure(errclass.ReasonOf(err, ReasonDiscovery), err)

			break
		}

		if decision.Outcome != gates.Act && (e.isLive || out.Err == nil && !out.Pending) {
			break
		}

		// The decision may be based on a cached read. A write, a failure and a pending deletion need a
		// decision on a live read, because the cache may be outdated.
		if e.isLive {
			err := r.execute(ctx, e, decision, out)
			if err == nil {
				break
			}

			attempts++

			if !isOverwritten(err) || attempts == maxAttempts {
				out.setFailure(errclass.ReasonOf(err, string(decision.Reason)), err)

				break
			}
		}

		if err := r.discover(ctx, e, transport.Live); err != nil {
			out.setFailure(ReasonDiscovery, err)

			break
		}
	}

	if out.Reason == string(gates.ReasonUnchanged) {
		r.renewIdentity(ctx, e)
	}

	r.finishEntry(ctx, e, decision, out)
}

// finishEntry prunes earlier versions, completes the outcome and logs it.
func (r *run) finishEntry(ctx context.Context, e *newEntry, decision gates.Decision, out *Outcome) {
	if out.Err == nil && decision.HasAction(gates.Prune) && !r.isStale {
		if err := r.prune(ctx, e, out); err != nil {
			out.setFailure(errclass.ReasonOf(err, string(gates.Prune)), err)
		}
	}

	if e.objects.current != nil {
		out.Object = transport.RefTo(e.objects.current).String()
	}

	out.Outdated = r.isOutdated(ctx, e, out)
	r.removeLeftovers(ctx, e, out)

	if out.Err != nil && out.Operation != Deleted && out.Operation != Detached {
		r.hasFailed = true
	}

	if out.Err == nil && out.Reason == string(gates.ReasonNotManaged) {
		r.in.Log.WarnContext(ctx, "resource is being deleted, but its object is not managed and is not deleted",
			"name", e.Name, "object", out.Object, "message", out.Message)
	}

	if out.Operation != None || len(out.Pruned) > 0 {
		attributes := []any{"name", e.Name, "operation", out.Operation, "reason", out.Reason, "object", out.Object}
		if out.Message != "" {
			attributes = append(attributes, "message", out.Message)
		}

		if len(out.Pruned) > 0 {
			attributes = append(attributes, "pruned", out.Pruned)
		}

		r.in.Log.InfoContext(ctx, "resource", attributes...)
	}
}

// isOutdated returns true if the object exists, but its content is not that of the manifest, and the entry has
// not failed. This happens if a gate has prevented the apply, or if a patch was done first.
func (r *run) isOutdated(ctx context.Context, e *newEntry, out *Outcome) bool {
	isWritten := out.Operation != None && out.Operation != Patched || out.Reason == string(gates.ReasonUnchanged)

	return out.Err == nil && !isWritten && !r.in.Deleting && e.Manifest != nil && e.objects.state == gates.Managed &&
		r.compareContent(ctx, e) != gates.Current
}

// isOverwritten reports whether an error means that the object has changed since it was read, so that the
// object has to be discovered again.
func isOverwritten(err error) bool {
	return errors.Is(err, transport.ErrConflict) || errors.Is(err, transport.ErrExists) ||
		errors.Is(err, transport.ErrNotFound) && !errors.Is(err, transport.ErrNoKind)
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

// reset stores the generation, even if a later one was stored before.
func (g *Generations) reset(resourceID string, generation int64) {
	g.mu.Lock()
	defer g.mu.Unlock()

	g.cache.Add(resourceID, generation)
}

// hasLater reports whether a later generation of the resource is stored. If not, it stores this one.
func (g *Generations) hasLater(resourceID string, generation int64) bool {
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
