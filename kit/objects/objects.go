// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package objects lists objects: all of a kind, page by page, and those that an event about
// another object concerns.
package objects

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// pageSize is how many objects one call of All lists.
const pageSize = 500

// All gives all objects of a kind, of which list is an empty list, by calls of 500 each. It is
// for reading past caches.
func All[T client.Object](
	ctx context.Context, from client.Reader, list client.ObjectList, options ...client.ListOption,
) ([]T, error) {
	var (
		out  []T
		next string
	)

	for {
		page, ok := list.DeepCopyObject().(client.ObjectList)
		if !ok {
			return nil, fmt.Errorf("list %T: its copy is no list", list)
		}

		err := from.List(ctx, page, append([]client.ListOption{client.Limit(pageSize), client.Continue(next)}, options...)...)
		if err != nil {
			return nil, err
		}

		out = append(out, items[T](page)...)

		if next = page.GetContinue(); next == "" {
			return out, nil
		}
	}
}

// Requests asks for a pass over each object in a list that is concerned; nil is all of them.
// It is for handlers of events and reads a cache, which only fails when the process ends.
func Requests[T client.Object](
	ctx context.Context, cache client.Reader, list client.ObjectList, concerned func(T) bool, options ...client.ListOption,
) []reconcile.Request {
	if err := cache.List(ctx, list, options...); err != nil {
		return nil
	}

	var out []reconcile.Request

	for _, item := range items[T](list) {
		if concerned == nil || concerned(item) {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(item)})
		}
	}

	return out
}

// items are pointers into a list.
func items[T client.Object](list client.ObjectList) []T {
	out := make([]T, 0, meta.LenList(list))

	_ = meta.EachListItem(list, func(item runtime.Object) error {
		if object, ok := item.(T); ok {
			out = append(out, object)
		}

		return nil
	})

	return out
}
