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
	"github.com/hyperfleet/hyperfleet/kit/watch"
)

// newScopedManager returns a manager whose calls are recorded as uses of the account.
func (f *Fleet) newScopedManager(ctx context.Context, account string, logger *slog.Logger) (*scopedManager, error) {
	namespaces := map[string]cache.Config{f.Namespace: {}}
	for _, name := range f.ExtraNamespaces {
		namespaces[name] = cache.Config{}
	}

	restConfig := withoutRateLimit(f.Env.RecordUses(account, f.Env.Config))
	if f.timestamps != nil {
		restConfig = f.timestamps.wrapConfig(restConfig)
	}

	if f.WrapTransport != nil {
		restConfig.Wrap(f.WrapTransport)
	}

	mgr, err := ctrl.NewManager(restConfig, ctrl.Options{
		Scheme:                 f.Env.Scheme,
		Logger:                 log.ToLogr(logger),
		NewCache:               watch.NewCache(ctx),
		MapperProvider:         watch.NewMapper,
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
		Cache: cache.Options{
			DefaultNamespaces: namespaces, DefaultTransform: watch.NewTransform(),
			// HypervisorClusters have no namespace. Select only those of this fleet.
			ByObject: map[client.Object]cache.ByObject{
				&v1alpha1.HypervisorCluster{}: {Label: labels.SelectorFromSet(labels.Set{fleetLabel: f.Cluster})},
			},
		},
		Controller: ctrlconfig.Controller{SkipNameValidation: new(true)},
	})
	if err != nil {
		return nil, fmt.Errorf("create manager: %w", err)
	}

	scoped := &scopedManager{Manager: mgr, namespaces: slices.Sorted(maps.Keys(namespaces)), clusterLabel: f.Cluster}
	if f.timestamps != nil {
		scoped.clock = f.timestamps.clock
	}

	return scoped, nil
}

// scopedManager is a manager that reads only one fleet's objects, also when it bypasses its cache. Otherwise
// each operator would clean up the pools of all other fleets, including those of tests that have ended.
type scopedManager struct {
	ctrl.Manager

	namespaces []string
	// clusterLabel is the value of fleetLabel of the fleet's clusters.
	clusterLabel string
	// clock is the clock of the controllers' queues. If it is nil, they use the real clock.
	clock clock.WithTicker
}

func (t *scopedManager) GetAPIReader() client.Reader {
	return &scopedReader{Reader: t.Manager.GetAPIReader(), manager: t}
}

type scopedReader struct {
	client.Reader

	manager *scopedManager
}

func (r *scopedReader) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if _, ok := list.(*v1alpha1.HypervisorClusterList); ok {
		labelOption := client.MatchingLabels{fleetLabel: r.manager.clusterLabel}

		return r.Reader.List(ctx, list, append([]client.ListOption{labelOption}, opts...)...)
	}

	var all []runtime.Object

	for _, namespace := range r.manager.namespaces {
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
