// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// pageSize is the maximum number of objects in one page of ListAll and ForEach. A page of 200 claims needs 3 MiB.
const pageSize = 200

// ListAll returns all objects of a kind. list is an empty list of the kind. ListAll lists pages of 200
// objects. It is meant for readers that bypass the cache.
func ListAll[T client.Object](
	ctx context.Context, from client.Reader, list client.ObjectList, options ...client.ListOption,
) ([]T, error) {
	var out []T

	err := ForEach(ctx, from, list, func(item T) { out = append(out, item) }, options...)
	if err != nil {
		return nil, err
	}

	return out, nil
}

// ForEach calls do for all objects of a kind, as ListAll returns them. If do keeps none of them, only one page is in
// memory at a time.
func ForEach[T client.Object](
	ctx context.Context, from client.Reader, list client.ObjectList, do func(T), options ...client.ListOption,
) error {
	for next := ""; ; {
		page, ok := list.DeepCopyObject().(client.ObjectList)
		if !ok {
			return fmt.Errorf("copy %T: the copy is not a list", list)
		}

		err := from.List(ctx, page, append([]client.ListOption{client.Limit(pageSize), client.Continue(next)}, options...)...)
		if err != nil {
			return err
		}

		for _, item := range extractItems[T](page) {
			do(item)
		}

		if next = page.GetContinue(); next == "" {
			return nil
		}
	}
}

// ForEachIn is ForEach for the objects in some namespaces, or in all if namespaces is empty.
func ForEachIn[T client.Object](
	ctx context.Context, from client.Reader, namespaces []string, list client.ObjectList, do func(T),
	options ...client.ListOption,
) error {
	if len(namespaces) == 0 {
		return ForEach(ctx, from, list, do, options...)
	}

	for _, namespace := range namespaces {
		if err := ForEach(ctx, from, list, do, append([]client.ListOption{client.InNamespace(namespace)}, options...)...); err != nil {
			return err
		}
	}

	return nil
}

// ListRequests returns a reconcile request for each listed object for which isAffected returns
// true. If isAffected is nil, it returns a request for every object. ListRequests is meant for
// event handlers that read a cache. isAffected must not change the object. It returns nil if the list fails, because a
// cache fails only when the process shuts down.
func ListRequests[T client.Object](
	ctx context.Context, cache client.Reader, list client.ObjectList, isAffected func(T) bool, options ...client.ListOption,
) []reconcile.Request {
	// isAffected changes no object, so the cache need not copy them.
	if err := cache.List(ctx, list, append([]client.ListOption{client.UnsafeDisableDeepCopy}, options...)...); err != nil {
		return nil
	}

	var out []reconcile.Request

	for _, item := range extractItems[T](list) {
		if isAffected == nil || isAffected(item) {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(item)})
		}
	}

	return out
}

// extractItems returns pointers to the items of a list. It skips items that are not of type T.
func extractItems[T client.Object](list client.ObjectList) []T {
	out := make([]T, 0, meta.LenList(list))

	_ = meta.EachListItem(list, func(item runtime.Object) error {
		if object, ok := item.(T); ok {
			out = append(out, object)
		}

		return nil
	})

	return out
}
