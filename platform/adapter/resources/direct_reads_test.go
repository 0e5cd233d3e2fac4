// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package resources_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/retry"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport/kubernetes"
	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

func TestDirectReads(t *testing.T) {
	t.Parallel()

	c, namespace := clients[transport.Kubernetes], env.Namespace(t)
	ref := transport.Ref{GVK: configMapKind(), Namespace: namespace, Name: "web"}
	otherRef := transport.Ref{GVK: configMapKind(), Namespace: namespace, Name: "other"}

	for _, read := range []transport.Read{transport.Cached, transport.Live} {
		if _, err := findOne(t.Context(), c, ref, read); !errors.Is(err, transport.ErrNotFound) {
			t.Errorf("Find() of a missing object = %v", err)
		}
	}

	made := mustCreate(t, c, newOwnedConfigMap(namespace, "web", map[string]any{"a": "1"}))

	other := newOwnedConfigMap(namespace, "other", nil)
	other.SetLabels(map[string]string{"app": "web"})
	mustCreate(t, c, other)

	// A new object is found immediately with every kind of read.
	for _, each := range []transport.Ref{ref, otherRef} {
		if _, err := findOne(t.Context(), c, each, transport.Cached); err != nil {
			t.Errorf("Find(%s) = %v", each, err)
		}
	}

	// Later the object is read from the cache, where it has no managed fields.
	var cached *unstructured.Unstructured

	timing.WaitUntil(t, "the cache has the object", func() (is bool) {
		var err error
		cached, err = findOne(t.Context(), c, ref, transport.Cached)

		return err == nil && cached.GetManagedFields() == nil
	})

	if cached.GetResourceVersion() != made.GetResourceVersion() || cached.GetKind() != "ConfigMap" {
		t.Errorf("cached: %v", cached)
	}

	// A query by name ignores labels, also in the cache.
	named := transport.Query{GVK: configMapKind(), Namespace: namespace, Name: "web", Labels: map[string]string{"app": "none"}}
	if got, err := c.Find(t.Context(), named, transport.Cached); err != nil || len(got) != 1 || got[0].GetManagedFields() != nil {
		t.Errorf("Find() by name = %v, %v, want the cached object", got, err)
	}

	query := transport.Query{GVK: configMapKind(), Namespace: namespace, Labels: map[string]string{"app": "web"}}
	for read, want := range map[transport.Read]int{transport.Cached: 1, transport.Live: 2} {
		if got, err := c.Find(t.Context(), query, read); err != nil || len(got) != want {
			t.Errorf("Find(%v) = %d objects, %v, want %d", read, len(got), err, want)
		}
	}

	query.GVK = schema.GroupVersionKind{Group: "example.io", Version: "v1", Kind: "Widget"}
	if got, err := c.Find(t.Context(), query, transport.Cached); err != nil || len(got) != 0 {
		t.Errorf("Find() of an unknown kind = %v, %v", got, err)
	}
}

// The client finds a kind whose CRD is created later.
func TestDirectFindsNewKinds(t *testing.T) {
	t.Parallel()

	c := newDirectClient(t, func(*kubernetes.Options) {})
	ref := transport.Ref{GVK: schema.GroupVersionKind{Group: "late.example.io", Version: "v1", Kind: "Late"}, Name: "one"}

	if _, err := findOne(t.Context(), c, ref, transport.Cached); !errors.Is(err, transport.ErrNotFound) {
		t.Fatalf("Find() = %v", err)
	}

	env.Apply(t, "testdata/late.yaml")

	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "late.example.io/v1", "kind": "Late", "metadata": map[string]any{"name": "one"}, "spec": map[string]any{"size": int64(1)},
	}}
	mustCreate(t, c, object)

	// The namespace is ignored for cluster-scoped kinds.
	ref.Namespace = "default"
	if _, err := findOne(t.Context(), c, ref, transport.Cached); err != nil {
		t.Error(err)
	}
}

// The namespace is also ignored in lists of cluster-scoped kinds from the cache. Otherwise each list would
// be read live.
func TestDirectListsIgnoreTheNamespaceOfClusterScopedKinds(t *testing.T) {
	t.Parallel()

	c := clients[transport.Kubernetes]
	name := "listed-" + env.Namespace(t)
	mustCreate(t, c, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Namespace",
		"metadata": map[string]any{"name": name, "labels": map[string]any{adapter.LabelAdapter: "dns", "listed": name}},
	}})

	query := transport.Query{
		GVK: schema.GroupVersionKind{Version: "v1", Kind: "Namespace"}, Namespace: "default", Labels: map[string]string{"listed": name},
	}
	timing.WaitUntil(t, "the list is read from the cache", func() bool {
		got, err := c.Find(t.Context(), query, transport.Cached)
		if err != nil || len(got) != 1 {
			t.Fatalf("Find() = %v, %v", got, err)
		}

		return got[0].GetManagedFields() == nil
	})
}

// A namespaced object cannot be read without a namespace. The API server would respond that the path does
// not exist, which could be mistaken for a missing object.
func TestDirectGetWithoutANamespace(t *testing.T) {
	t.Parallel()

	_, err := findOne(t.Context(), clients[transport.Kubernetes], transport.Ref{GVK: configMapKind(), Name: "web"}, transport.Live)
	if errclass.ClassOf(err) != errclass.Permanent || errclass.ReasonOf(err, "") != transport.ReasonInvalid ||
		errors.Is(err, transport.ErrNotFound) || !strings.Contains(err.Error(), "discovery.namespace") {
		t.Errorf("Find() = %v (%s), want an error that asks for discovery.namespace", err, errclass.ClassOf(err))
	}
}

// Without permission to watch, reads are live.
func TestDirectReadsWithoutWatches(t *testing.T) {
	t.Parallel()

	namespace := env.Namespace(t)
	must.Do(t, grantGet(t, namespace))

	c := newDirectClient(t, func(o *kubernetes.Options) { o.Config = env.User(t, "reader-"+namespace) })
	mustCreate(t, clients[transport.Kubernetes], newOwnedConfigMap(namespace, "web", nil))

	for range 5 {
		if _, err := findOne(t.Context(), c, transport.Ref{GVK: configMapKind(), Namespace: namespace, Name: "web"}, transport.Cached); err != nil {
			t.Fatal(err)
		}
	}
}

// laterClock is a clock that can be set forward. Its timers fire in real time.
type laterClock struct {
	clock.RealClock

	ahead atomic.Int64
}

func (c *laterClock) Now() time.Time { return c.RealClock.Now().Add(time.Duration(c.ahead.Load())) }

// If a watch that has synced fails, because a permission was taken away, or the API server is unreachable or overloaded for a
// minute, reads are live until it works again. Otherwise an object that was deleted meanwhile would count as applied.
func TestDirectReadsAfterFailedWatch(t *testing.T) {
	t.Parallel()

	const path = "/api/v1/configmaps"

	for name, answer := range map[string]func(r *http.Request) (*http.Response, error){
		"no permission": func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusForbidden, Body: http.NoBody, Request: r}, nil
		},
		"unreachable": func(*http.Request) (*http.Response, error) { return nil, syscall.ECONNREFUSED },
		"overloaded": func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusTooManyRequests, Body: http.NoBody, Request: r}, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var (
				isRefused atomic.Bool
				breakOff  atomic.Pointer[context.CancelFunc]
				now       laterClock
			)

			namespace := env.Namespace(t)
			ref := transport.Ref{GVK: configMapKind(), Namespace: namespace, Name: "web"}
			mustCreate(t, clients[transport.Kubernetes], newOwnedConfigMap(namespace, "web", nil))

			c := newDirectClient(t, func(o *kubernetes.Options) {
				o.Clock, o.Config = &now, rest.CopyConfig(env.Config)
				o.Config.Wrap(func(next http.RoundTripper) http.RoundTripper {
					return retry.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
						switch {
						case r.URL.Path != path:
							return next.RoundTrip(r)
						case isRefused.Load():
							now.ahead.Add(int64(time.Minute))

							return answer(r)
						}

						ctx, cancel := context.WithCancel(r.Context()) //nolint:govet // a watch ends with the test
						if r.URL.Query().Has("watch") {
							breakOff.Store(&cancel)
						}

						return next.RoundTrip(r.WithContext(ctx)) //nolint:govet // as above
					})
				})
			})
			isCached := func() bool {
				found, err := findOne(t.Context(), c, ref, transport.Cached)

				return err == nil && found.GetManagedFields() == nil // live reads have managed fields
			}

			timing.WaitUntil(t, "the object is cached", isCached)

			isRefused.Store(true)
			(*breakOff.Load())()
			must.Do(t, env.Client.Delete(t.Context(), newOwnedConfigMap(namespace, "web", nil)))

			timing.WaitUntil(t, "a cached read does not find the deleted object", func() bool {
				_, err := findOne(t.Context(), c, ref, transport.Cached)

				return errors.Is(err, transport.ErrNotFound)
			})

			isRefused.Store(false)
			mustCreate(t, clients[transport.Kubernetes], newOwnedConfigMap(namespace, "web", nil))
			timing.WaitUntil(t, "the object is cached again", isCached)
		})
	}
}

func grantGet(t *testing.T, namespace string) error {
	t.Helper()

	role := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
		"metadata": map[string]any{"namespace": namespace, "name": "reader"},
		"rules": []any{map[string]any{
			"apiGroups": []any{""}, "resources": []any{"configmaps"}, "verbs": []any{"get"},
		}},
	}}
	binding := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
		"metadata": map[string]any{"namespace": namespace, "name": "reader"},
		"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
		"subjects": []any{map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "reader-" + namespace}},
	}}

	return errors.Join(env.Client.Create(t.Context(), role), env.Client.Create(t.Context(), binding))
}
