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

// listsAtOnce bounds the kinds that are listed at once.
const listsAtOnce = 4

// kind is one that can be listed and deleted.
type kind struct {
	resource schema.GroupVersionResource
	kind     schema.GroupVersionKind
}

// object is one with our label.
type object struct {
	kind kind
	meta *metav1.PartialObjectMetadata
	item Item
}

// kinds lists the kinds, each in its preferred version. Groups whose server does not
// answer are errors in the report; the others are looked at.
func (s *sweeper) kinds(ctx context.Context) ([]kind, error) {
	lists, err := s.discovery.ServerPreferredResourcesWithContext(ctx)

	var broken *discovery.ErrGroupDiscoveryFailed

	switch {
	case errors.As(err, &broken):
		for group, why := range broken.Groups {
			if !s.wantsOf(group.Group) {
				continue
			}

			s.report.Errors = append(s.report.Errors, fmt.Sprintf("list kinds of %s: %v", group, why))
		}
	case err != nil:
		return nil, fmt.Errorf("list kinds: %w", err)
	}

	var out []kind

	for _, list := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "delete"}}, lists) {
		for i := range list.APIResources {
			gvk := schema.FromAPIVersionAndKind(list.GroupVersion, list.APIResources[i].Kind)
			name := gvk.GroupKind().String()
			wanted := len(s.Config.Kinds) == 0 || slices.Contains(s.Config.Kinds, name)

			if wanted && !slices.Contains(s.Config.ExcludedKinds, name) {
				out = append(out, kind{resource: gvk.GroupVersion().WithResource(list.APIResources[i].Name), kind: gvk})
			}
		}
	}

	for _, name := range s.Config.Kinds {
		if !slices.ContainsFunc(out, func(k kind) bool { return k.kind.GroupKind().String() == name }) {
			s.Log.WarnContext(ctx, "a kind of the configuration is not looked at: the cluster does not serve it, or it can't be "+
				"listed and deleted, or it is in excluded_kinds", "kind", name)
		}
	}

	return out, nil
}

// wantsOf says whether kinds of an API group are looked at, if they are there.
func (s *sweeper) wantsOf(group string) bool {
	return len(s.Config.Kinds) == 0 || slices.ContainsFunc(s.Config.Kinds, func(name string) bool {
		return schema.ParseGroupKind(name).Group == group
	})
}

// objects lists all objects with our label, each once.
func (s *sweeper) objects(ctx context.Context, kinds []kind) ([]*object, error) {
	selector, err := selector(s.Config.Adapters)
	if err != nil {
		return nil, err
	}

	found := make([][]*object, len(kinds))
	errs := make([]error, len(kinds))

	group, bounded := errgroup.WithContext(ctx)
	group.SetLimit(listsAtOnce)

	for i, k := range kinds {
		group.Go(func() error {
			found[i], errs[i] = s.list(bounded, k, selector)

			return bounded.Err()
		})
	}

	if err := group.Wait(); err != nil {
		return nil, fmt.Errorf("list objects: %w", err)
	}

	for i, err := range errs {
		if err != nil {
			s.report.Errors = append(s.report.Errors, fmt.Sprintf("list %s: %v", kinds[i].kind.GroupKind(), err))
		}
	}

	return s.once(found), nil
}

func selector(adapters []string) (string, error) {
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

// once leaves out objects that are shown by a second kind too, such as Events: of the
// two, the one that the object's HMAC is for counts.
func (s *sweeper) once(found [][]*object) []*object {
	seen := map[types.UID]int{}

	var out []*object

	for _, list := range found {
		for _, o := range list {
			at, double := seen[o.meta.UID]

			switch {
			case !double:
				seen[o.meta.UID] = len(out)
				out = append(out, o)
			case s.verify(o) == nil:
				out[at] = o
			}
		}
	}

	return out
}

// list reads all of one kind, metadata alone. What was read before an error is not used: the
// next run sees it again.
func (s *sweeper) list(ctx context.Context, k kind, selector string) (out []*object, err error) {
	pages := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return s.metadata.Resource(k.resource).List(ctx, options)
	})

	all, _, err := pages.List(ctx, metav1.ListOptions{LabelSelector: selector})
	if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
		return nil, nil // the kind went while sweep ran, or can't be listed after all
	}

	if err != nil {
		return nil, err
	}

	err = meta.EachListItem(all, func(one runtime.Object) error {
		if found, ok := one.(*metav1.PartialObjectMetadata); ok {
			out = append(out, newObject(k, found))
		}

		return nil
	})

	return out, err
}

func newObject(k kind, found *metav1.PartialObjectMetadata) *object {
	version, name := k.kind.ToAPIVersionAndKind()

	return &object{kind: k, meta: found, item: Item{
		APIVersion: version, Kind: name, Namespace: found.Namespace, Name: found.Name, UID: string(found.UID),
		Adapter: found.Labels[adapter.LabelAdapter], ResourceID: found.Labels[adapter.LabelResourceID],
	}}
}
