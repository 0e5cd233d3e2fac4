// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
	virtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// machineCache caches this operator's machines and instances by watches. Most reads need no call to the
// API server. It wakes the owner of a machine that has changed. The watches start with the first read.
type machineCache struct {
	provider *Provider
	scheme   *runtime.Scheme
	mapper   meta.RESTMapper

	ctx    context.Context //nolint:containedctx // it ends when the cache is closed
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu    sync.Mutex
	cache cache.Cache
}

func newMachineCache(p *Provider, scheme *runtime.Scheme, mapper meta.RESTMapper) *machineCache {
	ctx, cancel := context.WithCancel(context.Background())

	return &machineCache{provider: p, scheme: scheme, mapper: mapper, ctx: ctx, cancel: cancel}
}

func (v *machineCache) close() {
	v.cancel()
	v.mu.Lock()
	defer v.mu.Unlock()

	v.wg.Wait()
}

// syncedReader starts the watches if necessary, waits until the cache has synced, and returns it. If ctx
// ends before that, the error is of kind Unavailable.
func (v *machineCache) syncedReader(ctx context.Context) (client.Reader, error) {
	started, err := v.start()
	if err != nil {
		return nil, err
	}

	if !started.WaitForCacheSync(ctx) {
		return nil, &hypervisor.Error{
			Kind: hypervisor.Unavailable, Reason: "WatchFailed",
			Message: "watch machines: the cache has not synced with the API server yet", Err: ctx.Err(),
		}
	}

	return started, nil
}

// start starts the watches if they do not run. It does not wait until the cache has synced. After close,
// it returns an error.
func (v *machineCache) start() (cache.Cache, error) {
	v.mu.Lock()
	defer v.mu.Unlock()

	if v.cache != nil {
		return v.cache, nil
	}

	if v.ctx.Err() != nil {
		return nil, wrapAPIError("watch machines", readCall, v.ctx.Err())
	}

	created, err := cache.New(v.provider.rest, cache.Options{
		HTTPClient: v.provider.http, Scheme: v.scheme, Mapper: v.mapper,
		DefaultNamespaces:    map[string]cache.Config{v.provider.config.Namespace: {}},
		DefaultLabelSelector: labels.SelectorFromSet(labels.Set(v.provider.identity.selector())),
		DefaultTransform:     cache.TransformStripManagedFields(),
		// Check reports to people why the API server rejects requests. A watch that fails is only retried.
		DefaultWatchErrorHandler: func(context.Context, *toolscache.Reflector, error) {},
	})
	if err != nil {
		return nil, wrapAPIError("watch machines", readCall, err)
	}

	for _, kind := range []client.Object{&virtv1.VirtualMachine{}, &virtv1.VirtualMachineInstance{}} {
		informer, err := created.GetInformer(v.ctx, kind, cache.BlockUntilSynced(false))
		if err != nil {
			return nil, wrapAPIError("watch machines", readCall, err)
		}

		if _, err := informer.AddEventHandler(v.newEventHandler()); err != nil {
			return nil, wrapAPIError("watch machines", readCall, err)
		}
	}

	v.wg.Go(func() { _ = created.Start(v.ctx) })
	v.cache = created

	return created, nil
}

// newEventHandler returns a handler that wakes the owner of an object that was added or deleted, or
// whose summary has changed.
func (v *machineCache) newEventHandler() toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: v.wakeOwner,
		UpdateFunc: func(oldObj, newObj any) {
			if summarize(oldObj) != summarize(newObj) {
				v.wakeOwner(newObj)
			}
		},
		DeleteFunc: v.wakeOwner,
	}
}

func (v *machineCache) wakeOwner(obj any) {
	if tombstone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}

	object, ok := obj.(client.Object)
	if !ok {
		return
	}

	if record, isOurs := v.provider.identity.ownedRecord(object); isOurs {
		v.provider.options.Wake(record.Owner())
	}
}

// objectSummary is the part of an object that its owner depends on.
type objectSummary struct {
	phase, node, ip, reason string
	isDeleting              bool
}

func summarize(obj any) objectSummary {
	switch o := obj.(type) {
	case *virtv1.VirtualMachine:
		return objectSummary{
			phase: string(o.Status.PrintableStatus), reason: string(runStrategyOf(o)), isDeleting: o.DeletionTimestamp != nil,
		}
	case *virtv1.VirtualMachineInstance:
		return objectSummary{
			phase: string(o.Status.Phase), node: o.Status.NodeName, ip: firstIP(o), reason: waitingReason(o),
			isDeleting: o.DeletionTimestamp != nil,
		}
	default:
		return objectSummary{}
	}
}
