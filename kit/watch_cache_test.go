// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kit_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/kit/watch"
)

// A manager ends if it is stopped before or while its caches sync, also inside another manager. Its
// controllers do not reconcile.
func TestManagerEndsWhileCachesSync(t *testing.T) {
	t.Parallel()

	const endTimeout = 20 * time.Second

	for _, delay := range []time.Duration{0, time.Second} {
		t.Run(fmt.Sprint("stopped after ", delay), func(t *testing.T) {
			t.Parallel()

			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()

			outer, inner := newUnsyncedManager(ctx, t), newUnsyncedManager(ctx, t)
			if err := outer.Add(inner); err != nil {
				t.Fatal(err)
			}

			ended := make(chan error, 1)

			time.AfterFunc(delay, cancel)

			go func() { ended <- outer.Start(ctx) }()

			select {
			case err := <-ended:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(endTimeout):
				t.Fatal("the manager does not end")
			}
		})
	}
}

// newUnsyncedManager returns a manager for ctx, whose API server does not respond.
func newUnsyncedManager(ctx context.Context, t *testing.T) ctrl.Manager {
	t.Helper()

	end := make(chan struct{})
	api := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-end:
		case <-r.Context().Done():
		}
	}))

	t.Cleanup(api.Close)
	t.Cleanup(func() { close(end) })

	mgr, err := ctrl.NewManager(&rest.Config{Host: api.URL}, ctrl.Options{
		NewCache: watch.NewCache(ctx), Logger: logr.Discard(),
		Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) {
			mapper := meta.NewDefaultRESTMapper(nil)
			mapper.Add(corev1.SchemeGroupVersion.WithKind("ConfigMap"), meta.RESTScopeNamespace)

			return mapper, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}

	index := func(client.Object) []string { return nil }
	if err := mgr.GetFieldIndexer().IndexField(t.Context(), &corev1.ConfigMap{}, "index", index); err != nil {
		t.Fatal(err)
	}

	err = ctrl.NewControllerManagedBy(mgr).Named(fmt.Sprintf("%s %p", t.Name(), mgr)).For(&corev1.ConfigMap{}).Complete(
		reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
			t.Error("a controller reconciles without a synced cache")

			return reconcile.Result{}, nil
		}))
	if err != nil {
		t.Fatal(err)
	}

	return mgr
}
