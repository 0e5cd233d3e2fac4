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

// view watches this operator's machines: it answers most questions without a call, and
// wakes the owners of what has changed. It starts with the first question.
type view struct {
	p      *Provider
	scheme *runtime.Scheme
	mapper meta.RESTMapper

	ctx    context.Context //nolint:containedctx // the view's life
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu    sync.Mutex
	cache cache.Cache
}

func newView(p *Provider, scheme *runtime.Scheme, mapper meta.RESTMapper) *view {
	ctx, cancel := context.WithCancel(context.Background())

	return &view{p: p, scheme: scheme, mapper: mapper, ctx: ctx, cancel: cancel}
}

func (v *view) close() {
	v.cancel()
	v.mu.Lock()
	defer v.mu.Unlock()

	v.wg.Wait()
}

// reader gives the view once it has seen everything there is, and nil before.
func (v *view) reader(ctx context.Context) (client.Reader, error) {
	started, err := v.start()
	if err != nil {
		return nil, err
	}

	if !started.WaitForCacheSync(ctx) {
		return nil, &hypervisor.Error{
			Kind: hypervisor.Unavailable, Reason: "WatchFailed",
			Message: "watch machines: the API server has not answered yet", Err: ctx.Err(),
		}
	}

	return started, nil
}

// start begins to watch, if that is not done, and does not wait for it.
func (v *view) start() (cache.Cache, error) {
	v.mu.Lock()
	defer v.mu.Unlock()

	if v.cache != nil {
		return v.cache, nil
	}

	if v.ctx.Err() != nil {
		return nil, explain("watch machines", false, v.ctx.Err())
	}

	made, err := cache.New(v.p.rest, cache.Options{
		HTTPClient: v.p.http, Scheme: v.scheme, Mapper: v.mapper,
		DefaultNamespaces:    map[string]cache.Config{v.p.config.Namespace: {}},
		DefaultLabelSelector: labels.SelectorFromSet(labels.Set(v.p.id.selector())),
		DefaultTransform:     cache.TransformStripManagedFields(),
		// Check tells people why a watch fails; here it is only tried again.
		DefaultWatchErrorHandler: func(context.Context, *toolscache.Reflector, error) {},
	})
	if err != nil {
		return nil, explain("watch machines", false, err)
	}

	for _, kind := range []client.Object{&virtv1.VirtualMachine{}, &virtv1.VirtualMachineInstance{}} {
		informer, err := made.GetInformer(v.ctx, kind, cache.BlockUntilSynced(false))
		if err != nil {
			return nil, explain("watch machines", false, err)
		}

		if _, err := informer.AddEventHandler(v.handler()); err != nil {
			return nil, explain("watch machines", false, err)
		}
	}

	v.wg.Go(func() { _ = made.Start(v.ctx) })
	v.cache = made

	return made, nil
}

// handler wakes the owners of what changes in a way that an owner cares about.
func (v *view) handler() toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: v.wake,
		UpdateFunc: func(old, now any) {
			if summary(old) != summary(now) {
				v.wake(now)
			}
		},
		DeleteFunc: v.wake,
	}
}

func (v *view) wake(obj any) {
	if gone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}

	object, ok := obj.(client.Object)
	if !ok {
		return
	}

	if record, ours := v.p.id.owns(object); ours {
		v.p.options.Wake(record.Owner())
	}
}

// summary is what of an object matters to its owner.
type brief struct {
	phase, node, ip, reason string
	deleting                bool
}

func summary(obj any) brief {
	switch o := obj.(type) {
	case *virtv1.VirtualMachine:
		return brief{
			phase: string(o.Status.PrintableStatus), reason: string(strategyOf(o)), deleting: o.DeletionTimestamp != nil,
		}
	case *virtv1.VirtualMachineInstance:
		return brief{
			phase: string(o.Status.Phase), node: o.Status.NodeName, ip: ipOf(o), reason: whyWaiting(o),
			deleting: o.DeletionTimestamp != nil,
		}
	default:
		return brief{}
	}
}
