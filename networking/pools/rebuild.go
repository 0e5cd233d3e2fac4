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

	"github.com/hyperfleet/hyperfleet/kit/watch"
	"github.com/hyperfleet/hyperfleet/networking/alloc"
)

const (
	// rebuildTimeout is the timeout of one attempt.
	rebuildTimeout = time.Minute
	// rebuildRetry is the delay between two attempts.
	rebuildRetry = 2 * time.Second
)

// ErrNotRebuilt means that the address registry is not filled yet.
var ErrNotRebuilt = errors.New("the address registry is not rebuilt yet: it still reads the addresses in use from the API server")

// Reader restores the recorded addresses of one kind of machines into an address registry. It reads from the
// API server, not from a cache, and restores the oldest machine first, because the first of two conflicting
// records wins. A conflict is logged and is not an error.
type Reader func(ctx context.Context, a *AddressRegistry) error

// NewMachineReader returns the Reader of one kind of machines. list is an empty list of this kind. restore
// restores the recorded addresses of a machine. restoreWaiting puts a machine that found its pool exhausted
// back into the queue.
func NewMachineReader[T client.Object](
	apiReader client.Reader, list client.ObjectList, restore func(*AddressRegistry, T) error,
	restoreWaiting func(*AddressRegistry, T),
) Reader {
	return func(ctx context.Context, a *AddressRegistry) error {
		machines, err := watch.ListAll[T](ctx, apiReader, list)
		if err != nil {
			return fmt.Errorf("list machines: %w", err)
		}

		slices.SortFunc(machines, func(x, y T) int { return CompareAge(x, y) })

		for _, machine := range machines {
			if err := restore(a, machine); err != nil {
				log.FromContext(ctx).Error(err, "cannot restore the recorded addresses of a machine",
					"namespace", machine.GetNamespace(), "name", machine.GetName())
			}
		}

		for _, machine := range machines {
			restoreWaiting(a, machine)
		}

		return nil
	}
}

// PoolReader reads the pools of one kind of objects from the API server, not from a cache.
type PoolReader func(ctx context.Context) ([]PoolObject, error)

// PoolObject is an object that has a pool.
type PoolObject struct {
	// Object has the creation timestamp. If two pools overlap, the pool of the older object wins, also if
	// the objects are of different kinds.
	Object metav1.Object
	// Put adds the pool to the address registry. It returns no error, because the reconciler of the object
	// reports an invalid pool.
	Put func(a *AddressRegistry)
}

// CompareAge compares two objects by age, for sorting. The older object comes first and wins a conflict. The
// UID decides between objects of the same age.
func CompareAge(x, y metav1.Object) int {
	return cmp.Or(
		x.GetCreationTimestamp().Compare(y.GetCreationTimestamp().Time),
		strings.Compare(string(x.GetUID()), string(y.GetUID())),
	)
}

// startupRebuild is the rebuild that a process does once, when it becomes the leader.
type startupRebuild struct {
	once sync.Once
	// done is closed when the rebuild has succeeded.
	done        chan struct{}
	mu          sync.Mutex
	isStarted   bool
	poolReaders []PoolReader
	readers     []Reader
}

// IsWaiting returns whether the condition with this name says that the machine found its pool exhausted.
func IsWaiting(conditions []metav1.Condition, name string) bool {
	condition := meta.FindStatusCondition(conditions, name)

	return condition != nil && condition.Status == metav1.ConditionFalse && condition.Reason == alloc.ReasonExhausted
}

// AddReaders adds readers for Rebuild. All readers must be added before the first controller that uses the
// address registry starts.
func (a *AddressRegistry) AddReaders(readers ...Reader) {
	a.startup.mu.Lock()
	defer a.startup.mu.Unlock()

	a.startup.readers = append(a.startup.readers, readers...)
}

// AddPoolReaders adds readers of pools for Rebuild. Rebuild adds all pools before it calls the first Reader.
func (a *AddressRegistry) AddPoolReaders(readers ...PoolReader) {
	a.startup.mu.Lock()
	defer a.startup.mu.Unlock()

	a.startup.poolReaders = append(a.startup.poolReaders, readers...)
}

// Rebuild resets the address registry and fills it from its readers. After an error the registry is empty.
func (a *AddressRegistry) Rebuild(ctx context.Context) error {
	a.reset()

	if err := a.readAll(ctx); err != nil {
		a.reset()

		return fmt.Errorf("rebuild the address registry: %w", err)
	}

	return nil
}

func (a *AddressRegistry) reset() {
	a.mu.Lock()
	defer a.mu.Unlock()

	a.initMaps()
}

// readAll adds all pools, oldest first, and then all recorded addresses.
func (a *AddressRegistry) readAll(ctx context.Context) error {
	a.startup.mu.Lock()
	poolReaders, readers := a.startup.poolReaders, a.startup.readers
	a.startup.mu.Unlock()

	var objects []PoolObject

	for _, readPools := range poolReaders {
		found, err := readPools(ctx)
		if err != nil {
			return err
		}

		objects = append(objects, found...)
	}

	slices.SortFunc(objects, func(x, y PoolObject) int { return CompareAge(x.Object, y.Object) })

	for _, object := range objects {
		object.Put(a)
	}

	for _, read := range readers {
		if err := read(ctx, a); err != nil {
			return err
		}
	}

	return nil
}

// IsReady returns whether the address registry was filled through its RebuildSource.
func (a *AddressRegistry) IsReady() bool {
	select {
	case <-a.startup.done:
		return true
	default:
		return false
	}
}

// Check is a readiness check. It returns ErrNotRebuilt from the time when this process becomes the leader
// until the registry is filled. A process on standby is ready.
func (a *AddressRegistry) Check(*http.Request) error {
	a.startup.mu.Lock()
	defer a.startup.mu.Unlock()

	if a.startup.isStarted && !a.IsReady() {
		return ErrNotRebuilt
	}

	return nil
}

// RebuildSource returns a source for every controller that uses the address registry. The source emits no events, but
// its controller does not start before the registry is filled. The first controller that starts also starts
// the rebuild, which happens when the process becomes the leader. Failed attempts are repeated.
func (a *AddressRegistry) RebuildSource(c clock.WithTicker) source.SyncingSource {
	return rebuildSource{a, c}
}

type rebuildSource struct {
	addresses *AddressRegistry
	clock     clock.WithTicker
}

// Start starts the rebuild in the background, once for all sources.
func (s rebuildSource) Start(ctx context.Context, _ workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	s.addresses.startup.once.Do(func() {
		s.addresses.startup.mu.Lock()
		s.addresses.startup.isStarted = true
		s.addresses.startup.mu.Unlock()

		go s.addresses.fill(ctx, s.clock)
	})

	return nil
}

// WaitForSync waits until the address registry is rebuilt.
func (s rebuildSource) WaitForSync(ctx context.Context) error {
	select {
	case <-s.addresses.startup.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the address registry: %w", ctx.Err())
	}
}

// String returns the name of the source for the controller's log.
func (rebuildSource) String() string { return "address registry" }

// fill rebuilds the registry. It retries until it succeeds or ctx ends.
func (a *AddressRegistry) fill(ctx context.Context, c clock.WithTicker) {
	logger := log.FromContext(ctx).WithName("pools")

	for {
		start := c.Now()
		err := a.rebuildOnce(ctx)

		if err == nil {
			logger.Info("rebuilt the address registry", "pools", len(a.Statuses()), "took", c.Since(start).String())
			close(a.startup.done)

			return
		}

		if ctx.Err() != nil {
			return
		}

		logger.Error(err, "cannot rebuild the address registry, retrying", "after", rebuildRetry.String())

		select {
		case <-ctx.Done():
			return
		case <-c.After(rebuildRetry):
		}
	}
}

func (a *AddressRegistry) rebuildOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, rebuildTimeout)
	defer cancel()

	return a.Rebuild(ctx)
}
