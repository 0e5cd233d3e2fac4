// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/hyperfleet/hyperfleet/kit/watch"
)

// StartManager runs a manager with the controllers that setup adds, until stop is called or the test ends.
// Its client has no rate limit. Its cache contains the objects of one namespace, or of all namespaces if
// that is "".
func (e *Env) StartManager(t testing.TB, namespace string, setup func(context.Context, ctrl.Manager) error) (stop func()) {
	t.Helper()

	unlimited := e.RecordUses(e.account, e.Config)
	unlimited.QPS = -1

	ctx, cancel := context.WithCancel(context.Background())

	options := ctrl.Options{
		Scheme: e.Scheme, NewCache: watch.NewCache(ctx), Metrics: metricsserver.Options{BindAddress: "0"},
		Logger:     logr.Discard(),
		Controller: config.Controller{SkipNameValidation: new(true)}, // parallel tests run controllers with the same name
	}
	if namespace != "" {
		options.Cache.DefaultNamespaces = map[string]cache.Config{namespace: {}}
	}

	mgr, err := ctrl.NewManager(unlimited, options)
	if err != nil {
		cancel()
		t.Fatal(err)
	}

	if err := setup(ctx, mgr); err != nil {
		cancel()
		t.Fatal(err)
	}

	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()

	stop = sync.OnceFunc(func() {
		cancel()

		if err := <-ended; err != nil {
			t.Errorf("run manager: %v", err)
		}
	})
	t.Cleanup(stop)

	return stop
}
