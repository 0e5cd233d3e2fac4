// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/pager"

	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
)

// Get reads one object.
func (c *Client) Get(ctx context.Context, ref transport.Ref, read transport.Read) (*unstructured.Unstructured, error) {
	if read == transport.Cached {
		if object := c.cache.get(ctx, ref); object != nil {
			return object, nil
		}
	}

	calls, namespaced, err := c.resource(ref.GVK, ref.Namespace)

	switch {
	case meta.IsNoMatchError(err):
		return nil, errclass.New(errclass.Permanent, transport.ReasonNoKind,
			"get %s: %w: %w", ref, transport.ErrNotFound, transport.ErrNoKind)
	case err != nil:
		return nil, transport.Error("get", ref, err)
	case namespaced && ref.Namespace == "":
		return nil, errclass.New(errclass.Permanent, transport.ReasonInvalid,
			"get %s: the kind lives in namespaces, and none is named; set discovery.namespace", ref)
	}

	ctx, cancel := c.bound(ctx)
	defer cancel()

	object, err := calls.Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		return nil, transport.Error("get", ref, err)
	}

	return object, nil
}

// List reads all that match; of a kind that is not served there are none.
func (c *Client) List(ctx context.Context, query transport.Query, read transport.Read) ([]*unstructured.Unstructured, error) {
	calls, namespaced, err := c.resource(query.GVK, query.Namespace)
	if meta.IsNoMatchError(err) {
		return nil, nil
	}

	about := transport.Ref{GVK: query.GVK, Namespace: query.Namespace, Name: "with " + labels.Set(query.Labels).String()}
	if err != nil {
		return nil, transport.Error("list", about, err)
	}

	if !namespaced {
		query.Namespace = ""
	}

	if read == transport.Cached {
		if objects := c.cache.list(ctx, query); len(objects) > 0 {
			return objects, nil
		}
	}

	ctx, cancel := c.bound(ctx)
	defer cancel()

	pages := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return calls.List(ctx, options)
	})

	all, _, err := pages.List(ctx, metav1.ListOptions{LabelSelector: labels.SelectorFromSet(query.Labels).String()})
	if err != nil {
		return nil, transport.Error("list", about, err)
	}

	var objects []*unstructured.Unstructured

	err = meta.EachListItem(all, func(one runtime.Object) error {
		if object, ok := one.(*unstructured.Unstructured); ok {
			objects = append(objects, object)
		}

		return nil
	})

	return objects, err
}
