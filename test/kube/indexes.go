// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// IndexedClient finds objects by the index fields of the operator's cache. The API server does not have these indexes.
type IndexedClient struct {
	client.Client

	// extractors are those of the fields, by the type of the indexed object.
	extractors map[reflect.Type]map[string]client.IndexerFunc
}

// NewIndexedClient returns a client with the index fields that add adds.
func NewIndexedClient(
	t testing.TB, plain client.Client, add func(context.Context, client.FieldIndexer) error,
) *IndexedClient {
	t.Helper()

	out := &IndexedClient{Client: plain, extractors: map[reflect.Type]map[string]client.IndexerFunc{}}
	if err := add(t.Context(), out); err != nil {
		t.Fatal(err)
	}

	return out
}

// IndexField adds an index field.
func (c *IndexedClient) IndexField(_ context.Context, kind client.Object, field string, extract client.IndexerFunc) error {
	fields := c.extractors[reflect.TypeOf(kind)]
	if fields == nil {
		fields = map[string]client.IndexerFunc{}
		c.extractors[reflect.TypeOf(kind)] = fields
	}

	fields[field] = extract

	return nil
}

// List lists objects. It fails if an option selects objects by a field that is not indexed, as a cache does.
func (c *IndexedClient) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	var options client.ListOptions

	options.ApplyOptions(opts)

	if options.FieldSelector == nil {
		return c.Client.List(ctx, list, opts...)
	}

	lookup := options.FieldSelector.Requirements()[0]
	options.FieldSelector = nil

	if err := c.Client.List(ctx, list, &options); err != nil {
		return err
	}

	all, err := meta.ExtractList(list)
	if err != nil {
		return fmt.Errorf("read listed objects: %w", err)
	}

	for _, item := range all {
		if c.extractors[reflect.TypeOf(item)][lookup.Field] == nil {
			return fmt.Errorf("list %T by %s: the field has no index", item, lookup.Field)
		}
	}

	err = meta.SetList(list, slices.DeleteFunc(all, func(item runtime.Object) bool {
		object, ok := item.(client.Object)

		return !ok || !slices.Contains(c.extractors[reflect.TypeOf(item)][lookup.Field](object), lookup.Value)
	}))
	if err != nil {
		return fmt.Errorf("keep selected objects: %w", err)
	}

	return nil
}
