// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
)

// store holds the objects that carry the adapter's label, of the kinds that were asked
// for.
type store struct {
	cache   cache.Cache
	running atomic.Bool
	// changed, if there, is told of changes of the kinds that are followed.
	changed  func(resourceID string, gone bool)
	mu       sync.Mutex
	followed map[schema.GroupVersionKind]bool
}

func newStore(config *rest.Config, httpClient *http.Client, mapper meta.RESTMapper, options Options) (*store, error) {
	cached, err := cache.New(config, cache.Options{
		HTTPClient:                   httpClient,
		Scheme:                       runtime.NewScheme(),
		Mapper:                       mapper,
		DefaultLabelSelector:         labels.SelectorFromSet(labels.Set{adapter.LabelAdapter: options.Adapter}),
		DefaultTransform:             cache.TransformStripManagedFields(),
		DefaultUnsafeDisableDeepCopy: new(true),
		DefaultWatchErrorHandler: func(ctx context.Context, _ *toolscache.Reflector, err error) {
			if ctx.Err() == nil {
				options.Log.WarnContext(ctx, "watch objects: their reads are live until it works again", "error", err)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("make kubernetes transport: %w", err)
	}

	return &store{cache: cached, changed: options.Changed, followed: map[schema.GroupVersionKind]bool{}}, nil
}

func (s *store) run(ctx context.Context) error {
	s.running.Store(true)
	defer s.running.Store(false)

	if err := s.cache.Start(ctx); err != nil {
		return fmt.Errorf("watch objects: %w", err)
	}

	return nil
}

// ready says whether the kind's watch has caught up; the first question starts it.
func (s *store) ready(ctx context.Context, gvk schema.GroupVersionKind) bool {
	if !s.running.Load() {
		return false
	}

	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(gvk)

	informer, err := s.cache.GetInformer(ctx, object, cache.BlockUntilSynced(false))
	if err != nil || s.follow(gvk, informer) != nil {
		return false
	}

	return informer.HasSynced()
}

// follow has changes of the kind told, from its first use on.
func (s *store) follow(gvk schema.GroupVersionKind, informer cache.Informer) error {
	if s.changed == nil {
		return nil
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	if s.followed[gvk] {
		return nil
	}

	_, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		UpdateFunc: func(before, after any) {
			was, ok1 := before.(*unstructured.Unstructured)
			is, ok2 := after.(*unstructured.Unstructured)

			if ok1 && ok2 && !equality.Semantic.DeepEqual(was.Object["status"], is.Object["status"]) {
				s.tell(is, false)
			}
		},
		DeleteFunc: func(gone any) {
			if last, ok := gone.(toolscache.DeletedFinalStateUnknown); ok {
				gone = last.Obj
			}

			if object, ok := gone.(*unstructured.Unstructured); ok {
				s.tell(object, true)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("follow changes of %s: %w", gvk.Kind, err)
	}

	s.followed[gvk] = true

	return nil
}

func (s *store) tell(object *unstructured.Unstructured, gone bool) {
	if id := object.GetLabels()[adapter.LabelResourceID]; id != "" {
		s.changed(id, gone)
	}
}

// find gives none for what it does not hold.
func (s *store) find(ctx context.Context, query transport.Query) []*unstructured.Unstructured {
	if !s.ready(ctx, query.GVK) {
		return nil
	}

	if query.Name != "" {
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(query.GVK)

		if err := s.cache.Get(ctx, client.ObjectKey{Namespace: query.Namespace, Name: query.Name}, object); err != nil {
			return nil
		}

		return []*unstructured.Unstructured{object}
	}

	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(query.GVK.GroupVersion().WithKind(query.GVK.Kind + "List"))

	if err := s.cache.List(ctx, list, client.InNamespace(query.Namespace), client.MatchingLabels(query.Labels)); err != nil {
		return nil
	}

	return pointers(list)
}
