// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/api/meta"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// informers are the informers of a cache.
type informers interface {
	GetInformer(ctx context.Context, obj client.Object, opts ...cache.InformerGetOption) (cache.Informer, error)
}

// ListCached returns all objects of a kind in a cache, in any order. The objects belong to the cache and must not be
// changed. list is an empty list of the kind. A list of ten thousand claims has a copy of each, even with
// client.UnsafeDisableDeepCopy, which is 10 MiB. ListCached makes no copies if from is the cache of a manager without a
// list of namespaces, and otherwise lists the objects.
func ListCached[T client.Object](ctx context.Context, from client.Reader, list client.ObjectList) ([]T, error) {
	store, err := findStore(ctx, from, list)
	if err != nil {
		return nil, err
	}

	if store == nil {
		if err := from.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list cached objects: %w", err)
		}

		return extractItems[T](list), nil
	}

	items := store.List()
	out := make([]T, 0, len(items))

	for _, item := range items {
		if object, ok := item.(T); ok {
			out = append(out, object)
		}
	}

	return out, nil
}

// findStore returns the store of a kind, or nil if the objects are not in one store.
func findStore(ctx context.Context, from client.Reader, list client.ObjectList) (toolscache.Store, error) {
	source, ok := from.(informers)
	if !ok {
		return nil, nil //nolint:nilnil // there may be no store
	}

	items, err := meta.GetItemsPtr(list)
	if err != nil {
		return nil, fmt.Errorf("find kind of %T: %w", list, err)
	}

	object, ok := reflect.New(reflect.TypeOf(items).Elem().Elem()).Interface().(client.Object)
	if !ok {
		return nil, nil //nolint:nilnil // there may be no store
	}

	informer, err := source.GetInformer(ctx, object)
	if err != nil {
		return nil, fmt.Errorf("find cache of %T: %w", object, err)
	}

	if shared, ok := informer.(toolscache.SharedIndexInformer); ok {
		return shared.GetStore(), nil
	}

	return nil, nil //nolint:nilnil // there may be no store
}
