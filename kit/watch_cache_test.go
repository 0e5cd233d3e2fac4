// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kit_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
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

			outer, inner := newUnsyncedManager(ctx, t, newConfigMapMapper), newUnsyncedManager(ctx, t, newConfigMapMapper)
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

// A manager ends in time if it is stopped while a source waits for the resource of its kind.
func TestManagerEndsWhileSourceDiscovers(t *testing.T) {
	t.Parallel()

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	var called atomic.Bool

	mgr := newUnsyncedManager(ctx, t, func(config *rest.Config, client *http.Client) (meta.RESTMapper, error) {
		late, err := watch.NewMapper(config, client)
		known, _ := newConfigMapMapper(config, client)

		return lateMapper{RESTMapper: known, late: late, asked: &called}, err
	})

	nothing := reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) { return reconcile.Result{}, nil })

	err := ctrl.NewControllerManagedBy(mgr).Named(t.Name()).For(&corev1.Secret{}).Complete(nothing)
	if err != nil {
		t.Fatal(err)
	}

	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()

	// The caches never sync, so no controller starts. This is what its source does.
	go func() { _, _ = mgr.GetCache().GetInformer(ctx, &corev1.Secret{}) }()

	for !called.Load() {
		time.Sleep(time.Millisecond)
	}

	cancel()

	const stopTimeout = 8 * time.Second // the operator's

	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(stopTimeout):
		t.Fatal("the manager does not end in time")
	}
}

// lateMapper is a mapper that does not know Secrets until it has asked the API server.
type lateMapper struct {
	meta.RESTMapper

	late  meta.RESTMapper
	asked *atomic.Bool
}

func (m lateMapper) RESTMapping(kind schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	if kind.Kind != "Secret" {
		return m.RESTMapper.RESTMapping(kind, versions...)
	}

	m.asked.Store(true)

	return m.late.RESTMapping(kind, versions...)
}

func newConfigMapMapper(*rest.Config, *http.Client) (meta.RESTMapper, error) {
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("ConfigMap"), meta.RESTScopeNamespace)

	return mapper, nil
}

// newUnsyncedManager returns a manager for ctx, whose API server does not respond.
func newUnsyncedManager(
	ctx context.Context, t *testing.T, newMapper func(*rest.Config, *http.Client) (meta.RESTMapper, error),
) ctrl.Manager {
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
		MapperProvider: newMapper,
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
