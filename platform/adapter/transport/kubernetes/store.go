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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

// store caches the objects with the adapter's label, of the kinds that were read.
type store struct {
	cache   cache.Cache
	running atomic.Bool
	// onChange, if set, is called for changes of the watched kinds.
	onChange     func(resourceID string, deleted bool)
	mu           sync.Mutex
	watchedKinds map[schema.GroupVersionKind]bool
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
				options.Log.WarnContext(ctx, "watch of objects failed; reads are live until it recovers", "error", err)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("create kubernetes transport: %w", err)
	}

	return &store{cache: cached, onChange: options.OnChange, watchedKinds: map[schema.GroupVersionKind]bool{}}, nil
}

func (s *store) run(ctx context.Context) error {
	s.running.Store(true)
	defer s.running.Store(false)

	if err := s.cache.Start(ctx); err != nil {
		return fmt.Errorf("watch objects: %w", err)
	}

	return nil
}

// isSynced reports whether the watch of the kind has synced. The first call for a kind starts the watch.
func (s *store) isSynced(ctx context.Context, gvk schema.GroupVersionKind) bool {
	if !s.running.Load() {
		return false
	}

	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(gvk)

	informer, err := s.cache.GetInformer(ctx, object, cache.BlockUntilSynced(false))
	if err != nil || s.prepare(ctx, object, informer) != nil {
		return false
	}

	return informer.HasSynced()
}

// prepare indexes the objects of a kind by the label with the ID of their resource, and makes the informer call onChange.
// It does so only once for each kind.
func (s *store) prepare(ctx context.Context, object *unstructured.Unstructured, informer cache.Informer) error {
	gvk := object.GroupVersionKind()

	s.mu.Lock()
	defer s.mu.Unlock()

	if s.watchedKinds[gvk] {
		return nil
	}

	err := s.cache.IndexField(ctx, object, adapter.LabelResourceID, func(o client.Object) []string {
		return []string{o.GetLabels()[adapter.LabelResourceID]}
	})
	if err != nil {
		return fmt.Errorf("index %s by resource: %w", gvk.Kind, err)
	}

	s.watchedKinds[gvk] = true

	if s.onChange == nil {
		return nil
	}

	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		UpdateFunc: func(before, after any) {
			oldObject, okOld := before.(*unstructured.Unstructured)
			newObject, okNew := after.(*unstructured.Unstructured)

			if okOld && okNew && !equality.Semantic.DeepEqual(oldObject.Object["status"], newObject.Object["status"]) {
				s.notify(newObject, false)
			}
		},
		DeleteFunc: func(deleted any) {
			if last, ok := deleted.(toolscache.DeletedFinalStateUnknown); ok {
				deleted = last.Obj
			}

			if object, ok := deleted.(*unstructured.Unstructured); ok {
				s.notify(object, true)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watch changes of %s: %w", gvk.Kind, err)
	}

	return nil
}

func (s *store) notify(object *unstructured.Unstructured, deleted bool) {
	if id := object.GetLabels()[adapter.LabelResourceID]; id != "" {
		s.onChange(id, deleted)
	}
}

// find returns the matching objects in the cache, and whether the cache is complete. It returns none if the watch has
// not synced.
func (s *store) find(ctx context.Context, query transport.Query) (objects []*unstructured.Unstructured, isComplete bool) {
	if !s.isSynced(ctx, query.GVK) {
		return nil, false
	}

	if query.Name != "" {
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(query.GVK)

		if err := s.cache.Get(ctx, client.ObjectKey{Namespace: query.Namespace, Name: query.Name}, object); err != nil {
			return nil, apierrors.IsNotFound(err)
		}

		return []*unstructured.Unstructured{object}, true
	}

	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(query.GVK.GroupVersion().WithKind(query.GVK.Kind + "List"))

	options := []client.ListOption{client.InNamespace(query.Namespace), client.MatchingLabels(query.Labels)}
	if id := query.Labels[adapter.LabelResourceID]; id != "" {
		options = append(options, client.MatchingFields{adapter.LabelResourceID: id})
	}

	if err := s.cache.List(ctx, list, options...); err != nil {
		return nil, false
	}

	return toPointers(list), true
}
