// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"github.com/hyperfleet/hyperfleet/api/adapter"
)

// ListOwnKinds returns the kinds of which there are objects with the adapter's label. It tries all kinds that can be
// listed and deleted, and leaves out those that the adapter has no permission to list.
func (c *Client) ListOwnKinds(ctx context.Context) ([]schema.GroupVersionKind, error) {
	lists, err := c.discovery.ServerPreferredResourcesWithContext(ctx)

	// The other groups are complete if the server of a group does not respond.
	if _, isPartial := errors.AsType[*discovery.ErrGroupDiscoveryFailed](err); err != nil && !isPartial {
		return nil, fmt.Errorf("list kinds: %w", err)
	}

	var out []schema.GroupVersionKind

	options := metav1.ListOptions{LabelSelector: labels.Set{adapter.LabelAdapter: c.adapter}.String(), Limit: 1}

	for _, list := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "delete"}}, lists) {
		for i := range list.APIResources {
			kind := schema.FromAPIVersionAndKind(list.GroupVersion, list.APIResources[i].Kind)

			found, err := c.quiet.Resource(kind.GroupVersion().WithResource(list.APIResources[i].Name)).List(ctx, options)
			if ctx.Err() != nil {
				return nil, fmt.Errorf("list kinds: %w", ctx.Err())
			}

			if err == nil && len(found.Items) > 0 {
				out = append(out, kind)
			}
		}
	}

	return out, nil
}
