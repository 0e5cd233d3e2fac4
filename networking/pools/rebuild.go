// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/hyperfleet/hyperfleet/kit/objects"
	"github.com/hyperfleet/hyperfleet/networking/alloc"
)

const (
	// rebuildTimeout bounds one try.
	rebuildTimeout = time.Minute
	// rebuildRetry is the time between two tries.
	rebuildRetry = 2 * time.Second
)

// ErrNotRebuilt says that the address registry is not filled yet.
var ErrNotRebuilt = errors.New("the addresses in use are not read back from the API server yet")

// Reader puts into an address registry what the API server has on record of the addresses of one kind
// of machines, by Restore, the oldest first: where two contradict each other, the first one
// wins. It reads past caches. A contradiction is for its log and no error.
type Reader func(ctx context.Context, b *AddressRegistry) error

// MachineReader is the Reader of a kind of machines, of which list is an empty list. Restore
// puts back what a machine has on record, expect has one wait that found its pool full.
func MachineReader[T client.Object](
	live client.Reader, list client.ObjectList, restore func(*AddressRegistry, T) error, expect func(*AddressRegistry, T),
) Reader {
	return func(ctx context.Context, b *AddressRegistry) error {
		machines, err := objects.All[T](ctx, live, list)
		if err != nil {
			return fmt.Errorf("list machines: %w", err)
		}

		slices.SortFunc(machines, func(x, y T) int { return Older(x, y) })

		for _, machine := range machines {
			if err := restore(b, machine); err != nil {
				log.FromContext(ctx).Error(err, "an address on record is not its machine's",
					"namespace", machine.GetNamespace(), "name", machine.GetName())
			}
		}

		for _, machine := range machines {
			expect(b, machine)
		}

		return nil
	}
}

// PoolReader finds the pools of one kind of objects, past caches.
type PoolReader func(ctx context.Context) ([]Found, error)

// Found is an object with a pool.
type Found struct {
	// Object tells its age: of two pools that overlap, be they of one kind or of two, the
	// older object's wins.
	Object metav1.Object
	// Put puts the pool into the address registry. What is wrong with it is for the object's own pass.
	Put func(b *AddressRegistry)
}

// Older orders objects by their age: of two that contradict each other, the older one wins.
func Older(x, y metav1.Object) int {
	return cmp.Or(
		x.GetCreationTimestamp().Compare(y.GetCreationTimestamp().Time),
		strings.Compare(string(x.GetUID()), string(y.GetUID())),
	)
}

// warmup is the one rebuild of a process's life.
type warmup struct {
	once    sync.Once
	done    chan struct{}
	mu      sync.Mutex
	begun   bool
	pools   []PoolReader
	readers []Reader
}

// Waits says whether a condition on record is that of a machine that found its pool full.
func Waits(conditions []metav1.Condition, name string) bool {
	said := meta.FindStatusCondition(conditions, name)

	return said != nil && said.Status == metav1.ConditionFalse && said.Reason == alloc.ReasonExhausted
}

// ReadFrom adds a reader for Rebuild. All readers have to be there before the first
// controller of the address registry starts.
func (b *AddressRegistry) ReadFrom(readers ...Reader) {
	b.warm.mu.Lock()
	defer b.warm.mu.Unlock()

	b.warm.readers = append(b.warm.readers, readers...)
}

// ReadPoolsFrom adds a reader of pools. All pools are in the address registry before the first Reader.
func (b *AddressRegistry) ReadPoolsFrom(readers ...PoolReader) {
	b.warm.mu.Lock()
	defer b.warm.mu.Unlock()

	b.warm.pools = append(b.warm.pools, readers...)
}

// Rebuild fills the address registry anew from its readers. After an error it is empty.
func (b *AddressRegistry) Rebuild(ctx context.Context) error {
	b.empty()

	if err := b.read(ctx); err != nil {
		b.empty()

		return fmt.Errorf("rebuild the address registry: %w", err)
	}

	return nil
}

func (b *AddressRegistry) empty() {
	b.mu.Lock()
	defer b.mu.Unlock()

	b.clear()
}

func (b *AddressRegistry) read(ctx context.Context) error {
	b.warm.mu.Lock()
	pools, readers := b.warm.pools, b.warm.readers
	b.warm.mu.Unlock()

	var all []Found

	for _, find := range pools {
		found, err := find(ctx)
		if err != nil {
			return err
		}

		all = append(all, found...)
	}

	slices.SortFunc(all, func(x, y Found) int { return Older(x.Object, y.Object) })

	for _, found := range all {
		found.Put(b)
	}

	for _, read := range readers {
		if err := read(ctx, b); err != nil {
			return err
		}
	}

	return nil
}

// Ready says whether the address registry has been filled through its gate.
func (b *AddressRegistry) Ready() bool {
	select {
	case <-b.warm.done:
		return true
	default:
		return false
	}
}

// Check is a readiness check: not ready from the time that this process leads until the
// registry is filled. A process that stands by is ready.
func (b *AddressRegistry) Check(*http.Request) error {
	b.warm.mu.Lock()
	defer b.warm.mu.Unlock()

	if b.warm.begun && !b.Ready() {
		return ErrNotRebuilt
	}

	return nil
}

// Gate is a source for every controller that uses the address registry: it yields no events, but the
// controller does not begin before the address registry is filled. The first one to start, which is
// when the process leads, has it filled; tries that fail are repeated.
func (b *AddressRegistry) Gate(c clock.WithTicker) source.SyncingSource { return gate{b, c} }

type gate struct {
	addresses *AddressRegistry
	clock     clock.WithTicker
}

// Start begins the rebuild, once for all gates.
func (g gate) Start(ctx context.Context, _ workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	g.addresses.warm.once.Do(func() {
		g.addresses.warm.mu.Lock()
		g.addresses.warm.begun = true
		g.addresses.warm.mu.Unlock()

		go g.addresses.fill(ctx, g.clock)
	})

	return nil
}

// WaitForSync waits for the rebuild's end.
func (g gate) WaitForSync(ctx context.Context) error {
	select {
	case <-g.addresses.warm.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the address registry: %w", ctx.Err())
	}
}

// String is for the controller's log.
func (gate) String() string { return "address registry" }

func (b *AddressRegistry) fill(ctx context.Context, c clock.WithTicker) {
	logger := log.FromContext(ctx).WithName("pools")

	for {
		begun := c.Now()
		err := b.try(ctx)

		if err == nil {
			logger.Info("addresses in use are read back", "pools", len(b.Statuses()), "took", c.Since(begun).String())
			close(b.warm.done)

			return
		}

		if ctx.Err() != nil {
			return
		}

		logger.Error(err, "addresses in use can't be read back, trying again", "after", rebuildRetry.String())

		select {
		case <-ctx.Done():
			return
		case <-c.After(rebuildRetry):
		}
	}
}

func (b *AddressRegistry) try(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, rebuildTimeout)
	defer cancel()

	return b.Rebuild(ctx)
}
