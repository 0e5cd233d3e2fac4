// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package sweep

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/pager"

	"github.com/hyperfleet/hyperfleet/api/adapter"
)

// maxConcurrentLists is the number of kinds that are listed at the same time.
const maxConcurrentLists = 4

// resourceKind is a kind whose objects can be listed and deleted.
type resourceKind struct {
	gvr schema.GroupVersionResource
	gvk schema.GroupVersionKind
}

// object is an object with an ownership label.
type object struct {
	kind resourceKind
	meta *metav1.PartialObjectMetadata
	item Item
}

// listKinds lists the kinds, each in its preferred version. If the server of an API group does not
// respond, the report gets an error and the other groups are still listed.
func (s *sweeper) listKinds(ctx context.Context) ([]resourceKind, error) {
	lists, err := s.discovery.ServerPreferredResourcesWithContext(ctx)

	var failed *discovery.ErrGroupDiscoveryFailed

	switch {
	case errors.As(err, &failed):
		for group, groupErr := range failed.Groups {
			if !s.isGroupSelected(group.Group) {
				continue
			}

			s.report.Errors = append(s.report.Errors, fmt.Sprintf("list kinds of %s: %v", group, groupErr))
		}
	case err != nil:
		return nil, fmt.Errorf("list kinds: %w", err)
	}

	var out []resourceKind

	for _, list := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "delete"}}, lists) {
		for i := range list.APIResources {
			gvk := schema.FromAPIVersionAndKind(list.GroupVersion, list.APIResources[i].Kind)
			name := gvk.GroupKind().String()
			isSelected := len(s.Config.Kinds) == 0 || slices.Contains(s.Config.Kinds, name)

			if isSelected && !slices.Contains(s.Config.ExcludedKinds, name) {
				out = append(out, resourceKind{gvr: gvk.GroupVersion().WithResource(list.APIResources[i].Name), gvk: gvk})
			}
		}
	}

	for _, name := range s.Config.Kinds {
		if !slices.ContainsFunc(out, func(k resourceKind) bool { return k.gvk.GroupKind().String() == name }) {
			s.Log.WarnContext(ctx, "skipped a kind of the configuration: the cluster does not serve it, or it can't be "+
				"listed and deleted, or it is in excluded_kinds", "kind", name)
		}
	}

	return out, nil
}

// isGroupSelected returns true if the configuration selects kinds of an API group.
func (s *sweeper) isGroupSelected(group string) bool {
	return len(s.Config.Kinds) == 0 || slices.ContainsFunc(s.Config.Kinds, func(name string) bool {
		return schema.ParseGroupKind(name).Group == group
	})
}

// listObjects lists all objects with an ownership label. The result has each object once.
func (s *sweeper) listObjects(ctx context.Context, kinds []resourceKind) ([]*object, error) {
	selector, err := newSelector(s.Config.Adapters)
	if err != nil {
		return nil, err
	}

	labeled, err := s.listSelected(ctx, kinds, selector)
	if err != nil {
		return nil, err
	}

	// Somebody may have removed the label of the adapter.
	others, err := s.listSelected(ctx, kinds, adapter.LabelResourceID+",!"+adapter.LabelAdapter)

	return append(labeled, s.findAdapters(labeled, others)...), err
}

// findAdapters sets the adapter of objects without the label of the adapter, if their HMAC proves that one of the known
// adapters has created them. With a configured list of adapters, it leaves the other objects out of the result.
func (s *sweeper) findAdapters(labeled, others []*object) []*object {
	names := slices.Clone(s.Config.Adapters)
	for _, o := range labeled {
		names = append(names, o.item.Adapter)
	}

	slices.Sort(names)
	names = slices.Compact(names)

	return slices.DeleteFunc(others, func(o *object) bool {
		for _, name := range names {
			o.meta.Labels[adapter.LabelAdapter] = name
			if s.verify(o) == nil {
				o.item.Adapter = name

				return false
			}
		}

		delete(o.meta.Labels, adapter.LabelAdapter)

		return len(s.Config.Adapters) > 0
	})
}

func (s *sweeper) listSelected(ctx context.Context, kinds []resourceKind, selector string) ([]*object, error) {
	found := make([][]*object, len(kinds))
	errs := make([]error, len(kinds))

	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(maxConcurrentLists)

	for i, k := range kinds {
		group.Go(func() error {
			found[i], errs[i] = s.listObjectsOf(groupCtx, k, selector)

			return groupCtx.Err()
		})
	}

	if err := group.Wait(); err != nil {
		return nil, fmt.Errorf("list objects: %w", err)
	}

	for i, err := range errs {
		if err != nil {
			s.report.Errors = append(s.report.Errors, fmt.Sprintf("list %s: %v", kinds[i].gvk.GroupKind(), err))
		}
	}

	return s.deduplicate(found), nil
}

func newSelector(adapters []string) (string, error) {
	operator := selection.Exists
	if len(adapters) > 0 {
		operator = selection.In
	}

	requirement, err := labels.NewRequirement(adapter.LabelAdapter, operator, adapters)
	if err != nil {
		return "", fmt.Errorf("adapters: %w", err)
	}

	return labels.NewSelector().Add(*requirement).String(), nil
}

// deduplicate removes objects that were listed twice, because the API server serves them under two API
// groups. Events, for example, are in the core group and in events.k8s.io. It keeps the result whose
// HMAC is valid, because the HMAC covers the kind.
func (s *sweeper) deduplicate(found [][]*object) []*object {
	seen := map[types.UID]int{}

	var out []*object

	for _, list := range found {
		for _, o := range list {
			index, isDuplicate := seen[o.meta.UID]

			switch {
			case !isDuplicate:
				seen[o.meta.UID] = len(out)
				out = append(out, o)
			case s.verify(o) == nil:
				out[index] = o
			}
		}
	}

	return out
}

// listObjectsOf lists the metadata of all objects of one kind. If the list fails, it returns none
// of them, and the next run lists them again.
func (s *sweeper) listObjectsOf(ctx context.Context, k resourceKind, selector string) (out []*object, err error) {
	pages := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return s.metadata.Resource(k.gvr).List(ctx, options)
	})

	all, _, err := pages.List(ctx, metav1.ListOptions{LabelSelector: selector})
	if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
		return nil, nil // the kind was deleted during the run, or does not support list
	}

	if err != nil {
		return nil, err
	}

	err = meta.EachListItem(all, func(item runtime.Object) error {
		if found, ok := item.(*metav1.PartialObjectMetadata); ok {
			out = append(out, newObject(k, found))
		}

		return nil
	})

	return out, err
}

func newObject(k resourceKind, found *metav1.PartialObjectMetadata) *object {
	version, name := k.gvk.ToAPIVersionAndKind()

	return &object{kind: k, meta: found, item: Item{
		APIVersion: version, Kind: name, Namespace: found.Namespace, Name: found.Name, UID: string(found.UID),
		Adapter: found.Labels[adapter.LabelAdapter], ResourceID: found.Labels[adapter.LabelResourceID],
	}}
}
