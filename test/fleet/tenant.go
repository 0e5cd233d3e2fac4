// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/log"
)

// tenant makes a manager that has the account's name.
func (f *Fleet) tenant(account string, logger *slog.Logger) (*tenant, error) {
	namespaces := map[string]cache.Config{f.Namespace: {}}
	for _, name := range f.Neighbours {
		namespaces[name] = cache.Config{}
	}

	way := unlimited(f.Env.Record(account, f.Env.Config))
	if f.time != nil {
		way = f.time.way(way)
	}

	if f.Watch != nil {
		way.Wrap(f.Watch)
	}

	mgr, err := ctrl.NewManager(way, ctrl.Options{
		Scheme:                 f.Env.Scheme,
		Logger:                 log.Logr(logger),
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
		Cache: cache.Options{
			DefaultNamespaces: namespaces, DefaultTransform: cache.TransformStripManagedFields(),
			// Clusters have no namespace, and other fleets' are none of this operator's.
			ByObject: map[client.Object]cache.ByObject{
				&v1alpha1.HypervisorCluster{}: {Label: labels.SelectorFromSet(labels.Set{fleetLabel: f.Cluster})},
			},
		},
		Controller: ctrlconfig.Controller{SkipNameValidation: new(true)},
	})
	if err != nil {
		return nil, fmt.Errorf("make manager: %w", err)
	}

	own := &tenant{Manager: mgr, namespaces: slices.Sorted(maps.Keys(namespaces)), label: f.Cluster}
	if f.time != nil {
		own.clock = f.time.clock
	}

	return own, nil
}

// tenant is a manager that sees one fleet's objects also where it reads past its cache: else
// each operator swept the pools of all the others, and of those that have ended.
type tenant struct {
	ctrl.Manager

	namespaces []string
	// label is that of the fleet's clusters.
	label string
	// clock of the controllers' queues; nil for the real one.
	clock clock.WithTicker
}

func (t *tenant) GetAPIReader() client.Reader {
	return &tenantReader{Reader: t.Manager.GetAPIReader(), tenant: t}
}

type tenantReader struct {
	client.Reader

	tenant *tenant
}

func (r *tenantReader) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if _, ok := list.(*v1alpha1.HypervisorClusterList); ok {
		return r.Reader.List(ctx, list, append([]client.ListOption{client.MatchingLabels{fleetLabel: r.tenant.label}}, opts...)...)
	}

	var all []runtime.Object

	for _, namespace := range r.tenant.namespaces {
		err := r.Reader.List(ctx, list, append([]client.ListOption{client.InNamespace(namespace)}, opts...)...)
		if err != nil {
			return err
		}

		items, err := meta.ExtractList(list)
		if err != nil {
			return err
		}

		all = append(all, items...)
	}

	return meta.SetList(list, all)
}
