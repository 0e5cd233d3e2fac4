// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"cmp"
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
)

// Find returns the matching objects.
func (c *Client) Find(ctx context.Context, query transport.Query, read transport.Read) ([]*unstructured.Unstructured, error) {
	ref := transport.Ref{
		GVK: query.GVK, Namespace: query.Namespace, Name: cmp.Or(query.Name, "with "+labels.Set(query.Labels).String()),
	}
	calls, isNamespaced, err := c.resourceFor(ctx, query.GVK, query.Namespace)

	switch {
	case meta.IsNoMatchError(err):
		return nil, nil
	case err != nil:
		return nil, transport.Error("find", ref, err)
	case isNamespaced && query.Namespace == "" && query.Name != "":
		return nil, errclass.New(errclass.Permanent, transport.ReasonInvalid,
			"find %s: the kind is namespaced, but no namespace is given; set discovery.namespace", ref)
	case !isNamespaced:
		query.Namespace = ""
	}

	if read != transport.Live {
		objects, isComplete := c.cache.find(ctx, query)

		switch {
		case len(objects) > 0, isComplete && read != transport.Cached:
			return objects, nil
		case read == transport.CacheOnly:
			return nil, fmt.Errorf("find %s: %w", ref, transport.ErrNotCached)
		}
	}

	ctx, cancel := c.withTimeout(ctx)
	defer cancel()

	if query.Name == "" {
		found, err := calls.List(ctx, metav1.ListOptions{LabelSelector: labels.SelectorFromSet(query.Labels).String()})
		if err != nil {
			return nil, transport.Error("find", ref, err)
		}

		return toPointers(found), nil
	}

	object, err := calls.Get(ctx, query.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}

	return []*unstructured.Unstructured{object}, transport.Error("find", ref, err)
}

func toPointers(list *unstructured.UnstructuredList) []*unstructured.Unstructured {
	objects := make([]*unstructured.Unstructured, len(list.Items))
	for i := range list.Items {
		objects[i] = &list.Items[i]
	}

	return objects
}
