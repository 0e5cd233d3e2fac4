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

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
)

// store caches the objects with the adapter's label, of the kinds that were read.
type store struct {
	cache   cache.Cache
	running atomic.Bool
	// onChange, if set, is called for changes of the watched kinds, as differ finds them. onUnread, if set, is called for
	// other changes of a status.
	onChange func(resourceID string, deleted bool)
	differ   func(before, after *unstructured.Unstructured) bool
	onUnread func(resourceID string)

	mu sync.Mutex
	// informers are the watches of the kinds that were read.
	informers map[schema.GroupVersionKind]toolscache.SharedIndexInformer
	// failedAt has the resource versions at which watches have failed, by their kind. The index of such a watch may have
	// objects that no longer exist, until the watch has read another version.
	failedAt map[string]string
}

func newStore(config *rest.Config, httpClient *http.Client, mapper meta.RESTMapper, options Options) (*store, error) {
	s := &store{
		onChange: options.OnChange, differ: options.Differ, onUnread: options.OnUnread,
		informers: map[schema.GroupVersionKind]toolscache.SharedIndexInformer{}, failedAt: map[string]string{},
	}

	if s.differ == nil {
		s.differ = haveDifferentStatus
	}

	cached, err := cache.New(config, cache.Options{
		HTTPClient:                   httpClient,
		Scheme:                       runtime.NewScheme(),
		Mapper:                       mapper,
		DefaultLabelSelector:         labels.SelectorFromSet(labels.Set{adapter.LabelAdapter: options.Adapter}),
		DefaultTransform:             stripManagedFields,
		DefaultUnsafeDisableDeepCopy: new(true),
		DefaultWatchErrorHandler: func(ctx context.Context, watch *toolscache.Reflector, err error) {
			s.recordFailure(watch)

			if ctx.Err() == nil {
				options.Log.WarnContext(ctx, "watch of objects failed; reads are live until it recovers", "error", err)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("create kubernetes transport: %w", err)
	}

	s.cache = cached

	return s, nil
}

// stripManagedFields removes the managed fields, which nobody reads from the cache. The function of controller-runtime
// decodes those of an unstructured object first, for each event of a watch.
func stripManagedFields(object any) (any, error) {
	if found, ok := object.(*unstructured.Unstructured); ok {
		unstructured.RemoveNestedField(found.Object, "metadata", "managedFields")
	}

	return object, nil
}

func (s *store) recordFailure(watch *toolscache.Reflector) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.failedAt[watch.TypeDescription()] = watch.LastSyncResourceVersion()
}

// hasFailed returns true if the watch of a kind has failed and has read nothing since.
func (s *store) hasFailed(gvk schema.GroupVersionKind, informer toolscache.SharedIndexInformer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	version, hasFailed := s.failedAt[gvk.String()]
	if hasFailed && version != informer.LastSyncResourceVersion() {
		delete(s.failedAt, gvk.String())

		return false
	}

	return hasFailed
}

func (s *store) run(ctx context.Context) error {
	s.running.Store(true)
	defer s.running.Store(false)

	if err := s.cache.Start(ctx); err != nil {
		return fmt.Errorf("watch objects: %w", err)
	}

	return nil
}

// informerOf returns the informer of a kind, or nil if its watch has not synced or has failed. The first call for a kind
// starts the watch.
func (s *store) informerOf(ctx context.Context, gvk schema.GroupVersionKind) toolscache.SharedIndexInformer {
	if !s.running.Load() {
		return nil
	}

	s.mu.Lock()
	informer := s.informers[gvk]
	s.mu.Unlock()

	if informer == nil {
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(gvk)

		started, err := s.cache.GetInformer(ctx, object, cache.BlockUntilSynced(false))
		if err != nil {
			return nil
		}

		// The cache has indexes, which its interface does not show.
		informer, _ = started.(toolscache.SharedIndexInformer)
		if informer == nil || s.prepare(gvk, informer) != nil {
			return nil
		}
	}

	if !informer.HasSynced() || s.hasFailed(gvk, informer) {
		return nil
	}

	return informer
}

// prepare indexes the objects of a kind by the label with the ID of their resource, and makes the informer call onChange.
// It does so only once for each kind.
func (s *store) prepare(gvk schema.GroupVersionKind, informer toolscache.SharedIndexInformer) error {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.informers[gvk] != nil {
		return nil
	}

	err := informer.AddIndexers(toolscache.Indexers{adapter.LabelResourceID: func(object any) ([]string, error) {
		found, ok := object.(*unstructured.Unstructured)
		if !ok {
			return nil, nil
		}

		return []string{found.GetLabels()[adapter.LabelResourceID]}, nil
	}})
	if err != nil {
		return fmt.Errorf("index %s by resource: %w", gvk.Kind, err)
	}

	s.informers[gvk] = informer

	if s.onChange == nil {
		return nil
	}

	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		UpdateFunc: func(before, after any) {
			oldObject, okOld := before.(*unstructured.Unstructured)
			newObject, okNew := after.(*unstructured.Unstructured)

			if okOld && okNew {
				s.notifyUpdate(oldObject, newObject)
			}
		},
		DeleteFunc: func(deleted any) {
			if last, ok := deleted.(toolscache.DeletedFinalStateUnknown); ok {
				deleted = last.Obj
			}

			if object, ok := deleted.(*unstructured.Unstructured); ok {
				s.notify(object, objectDeleted)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watch changes of %s: %w", gvk.Kind, err)
	}

	return nil
}

// objectChanged and objectDeleted are the values of the parameter isDeleted.
const objectChanged, objectDeleted = false, true

func (s *store) notifyUpdate(before, after *unstructured.Unstructured) {
	switch {
	case s.differ(before, after):
		s.notify(after, objectChanged)
	case s.onUnread != nil && haveDifferentStatus(before, after):
		if id := after.GetLabels()[adapter.LabelResourceID]; id != "" {
			s.onUnread(id)
		}
	}
}

func haveDifferentStatus(before, after *unstructured.Unstructured) bool {
	return !equality.Semantic.DeepEqual(before.Object["status"], after.Object["status"])
}

func (s *store) notify(object *unstructured.Unstructured, isDeleted bool) {
	if id := object.GetLabels()[adapter.LabelResourceID]; id != "" {
		s.onChange(id, isDeleted)
	}
}

// find returns the matching objects in the cache, and whether the cache is complete. It returns none if the watch has
// not synced or has failed. It reads the index itself, because the cache's List takes ten times as long for the few objects of a
// resource.
func (s *store) find(ctx context.Context, query transport.Query) (objects []*unstructured.Unstructured, isComplete bool) {
	informer := s.informerOf(ctx, query.GVK)
	if informer == nil {
		return nil, false
	}

	index, id := informer.GetIndexer(), query.Labels[adapter.LabelResourceID]

	if query.Name != "" {
		key := toolscache.ObjectName{Namespace: query.Namespace, Name: query.Name}.String()
		found, _, _ := index.GetByKey(key)

		if object, ok := found.(*unstructured.Unstructured); ok {
			objects = append(objects, object)
		}

		return objects, true
	}

	var (
		found []any
		err   error
	)

	if id == "" {
		found = index.List()
	} else if found, err = index.ByIndex(adapter.LabelResourceID, id); err != nil {
		return nil, false
	}

	selector := labels.SelectorFromSet(query.Labels)

	for _, one := range found {
		object, ok := one.(*unstructured.Unstructured)
		if ok && selector.Matches(labels.Set(object.GetLabels())) &&
			(query.Namespace == "" || object.GetNamespace() == query.Namespace) {
			objects = append(objects, object)
		}
	}

	return objects, true
}
