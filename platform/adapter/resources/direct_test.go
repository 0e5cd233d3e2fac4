// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package resources_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/retry"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport/kubernetes"
	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

func configMapKind() schema.GroupVersionKind { return corev1.SchemeGroupVersion.WithKind("ConfigMap") }

// newDirectClient returns a client whose watches run.
func newDirectClient(t *testing.T, change func(*kubernetes.Options)) *kubernetes.Client {
	t.Helper()

	options := kubernetes.Options{Config: env.Config, Adapter: "dns"}
	change(&options)

	c, err := kubernetes.New(options)
	must.Do(t, err)

	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)

	go func() { ended <- c.Run(ctx) }()

	t.Cleanup(func() {
		cancel()

		if err := <-ended; err != nil {
			t.Error(err)
		}
	})

	return c
}

func newOwnedConfigMap(namespace, name string, data map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{
			"namespace": namespace, "name": name,
			"labels":      map[string]any{adapter.LabelAdapter: "dns", "app": "web"},
			"annotations": map[string]any{adapter.AnnotationGeneration: "1"},
		},
		"data": data,
	}}
}

func mustCreate(t *testing.T, c transport.Client, object *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()

	made, err := c.Create(t.Context(), object)
	must.Do(t, err)

	return made
}

func getObjectData(object *unstructured.Unstructured) map[string]string {
	values, _, _ := unstructured.NestedStringMap(object.Object, "data")

	return values
}

// A field that is missing in the next apply is removed, even if a create had set it. Fields that a patch or
// others have set stay.
func TestDirectApplyOwnsCreatedFields(t *testing.T) {
	t.Parallel()

	c, namespace := clients[transport.Kubernetes], env.Namespace(t)
	live := mustCreate(t, c, newOwnedConfigMap(namespace, "web", map[string]any{"a": "1", "b": "1"}))

	live, err := c.Patch(t.Context(), transport.RefTo(live), map[string]any{"data": map[string]any{"patched": "1"}})
	must.Do(t, err)

	edited := live.DeepCopy()
	must.Do(t, unstructured.SetNestedField(edited.Object, "1", "data", "strange"))

	must.Do(t, env.Client.Update(t.Context(), edited, client.FieldOwner("somebody")))

	for range 2 {
		applied, takenOver, err := c.Apply(t.Context(), edited, newOwnedConfigMap(namespace, "web", map[string]any{"a": "2", "c": "2"}))
		must.Do(t, err)

		want := map[string]string{"a": "2", "c": "2", "patched": "1", "strange": "1"}
		if diff := cmp.Diff(want, getObjectData(applied)); diff != "" || takenOver != "" {
			t.Fatalf("data after apply: %s; taken over %q", diff, takenOver)
		}

		edited = applied
	}
}

// A merge patch replaces a list, also one that a strategic merge patch would merge.
func TestDirectPatchReplacesLists(t *testing.T) {
	t.Parallel()

	c := clients[transport.Kubernetes]
	object := newOwnedConfigMap(env.Namespace(t), "web", nil)
	object.SetFinalizers([]string{"example.io/first"})

	live := mustCreate(t, c, object)

	for _, want := range [][]string{{"example.io/second"}, nil} {
		patched, err := c.Patch(t.Context(), transport.RefTo(live), map[string]any{"metadata": map[string]any{"finalizers": want}})
		must.Do(t, err)

		if diff := cmp.Diff(want, patched.GetFinalizers()); diff != "" {
			t.Errorf("finalizers (-want +got):\n%s", diff)
		}

		live = patched
	}
}

// The message does not name a field that our own patch has set. TestFieldsAreTakenOver covers fields of
// others.
func TestDirectApplyRevertsPatches(t *testing.T) {
	t.Parallel()

	c, namespace := clients[transport.Kubernetes], env.Namespace(t)
	live := mustCreate(t, c, newOwnedConfigMap(namespace, "web", map[string]any{"a": "1"}))

	live, err := c.Patch(t.Context(), transport.RefTo(live), map[string]any{"data": map[string]any{"a": "patched"}})
	must.Do(t, err)

	applied, takenOver, err := c.Apply(t.Context(), live, newOwnedConfigMap(namespace, "web", map[string]any{"a": "3"}))
	if err != nil || takenOver != "" || getObjectData(applied)["a"] != "3" {
		t.Errorf("after a patch: %v, taken over %q, a is %q", err, takenOver, getObjectData(applied)["a"])
	}
}

// A write fails if the object was changed, deleted or recreated since it was read.
func TestDirectWritesDetectConflicts(t *testing.T) {
	t.Parallel()

	c := clients[transport.Kubernetes]
	writes := map[string]func(context.Context, *unstructured.Unstructured) error{
		"apply": func(ctx context.Context, live *unstructured.Unstructured) error {
			_, _, err := c.Apply(ctx, live, newOwnedConfigMap(live.GetNamespace(), "web", map[string]any{"a": "2"}))

			return err
		},
		"patch": func(ctx context.Context, live *unstructured.Unstructured) error {
			_, err := c.Patch(ctx, transport.RefTo(live), map[string]any{"data": map[string]any{"a": "2"}})

			return err
		},
		"delete": func(ctx context.Context, live *unstructured.Unstructured) error {
			return c.Delete(ctx, transport.RefTo(live), metav1.DeletePropagationBackground)
		},
	}
	for name, write := range writes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			namespace := env.Namespace(t)
			stale := mustCreate(t, c, newOwnedConfigMap(namespace, "web", map[string]any{"a": "1"}))

			changed, err := c.Patch(t.Context(), transport.RefTo(stale), map[string]any{"data": map[string]any{"b": "1"}})
			must.Do(t, err)

			if err := write(t.Context(), stale); !errors.Is(err, transport.ErrConflict) || errclass.ClassOf(err) != errclass.Transient {
				t.Errorf("on a changed object: %v, want ErrConflict", err)
			}

			must.Do(t, c.Delete(t.Context(), transport.RefTo(changed), metav1.DeletePropagationBackground))

			err = write(t.Context(), changed)
			if !errors.Is(err, transport.ErrConflict) && !errors.Is(err, transport.ErrNotFound) {
				t.Errorf("on a deleted object: %v, want ErrConflict or ErrNotFound", err)
			}

			again := mustCreate(t, c, newOwnedConfigMap(namespace, "web", map[string]any{"a": "new"}))
			if err := write(t.Context(), changed); !errors.Is(err, transport.ErrConflict) {
				t.Errorf("on another object of the name: %v, want ErrConflict", err)
			}

			got, err := findOne(t.Context(), c, transport.RefTo(again), transport.Live)
			if err != nil || got.GetResourceVersion() != again.GetResourceVersion() {
				t.Errorf("the new object was changed: %v", err)
			}
		})
	}
}

// A write is sent once, even if the API server does not respond to it, because the adapter handles the event again. A
// read is repeated.
func TestDirectWritesAreSentOnce(t *testing.T) {
	t.Parallel()

	var sent atomic.Int64

	namespace := env.Namespace(t)
	live := mustCreate(t, clients[transport.Kubernetes], newOwnedConfigMap(namespace, "web", map[string]any{"a": "1"}))
	ref := transport.RefTo(live)
	c := newDirectClient(t, func(o *kubernetes.Options) {
		o.Config = rest.CopyConfig(env.Config)
		o.Config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return retry.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
				if !strings.Contains(r.URL.Path, "/"+namespace+"/") {
					return next.RoundTrip(r)
				}

				sent.Add(1)

				return &http.Response{StatusCode: http.StatusServiceUnavailable, Body: http.NoBody, Request: r}, nil
			})
		})
	})

	for _, tc := range []struct {
		name string
		call func() error
		want int64
	}{
		{"create", func() error {
			_, err := c.Create(t.Context(), newOwnedConfigMap(namespace, "other", nil))

			return err
		}, 1},
		{"apply", func() error {
			_, _, err := c.Apply(t.Context(), live, newOwnedConfigMap(namespace, "web", map[string]any{"a": "2"}))

			return err
		}, 1},
		{"patch", func() error {
			_, err := c.Patch(t.Context(), ref, map[string]any{"data": map[string]any{"a": "2"}})

			return err
		}, 1},
		{"delete", func() error { return c.Delete(t.Context(), ref, metav1.DeletePropagationBackground) }, 1},
		{"read", func() error {
			_, err := findOne(t.Context(), c, ref, transport.Live)

			return err
		}, 3},
	} {
		sent.Store(0)

		if err := tc.call(); errclass.ClassOf(err) != errclass.Transient || sent.Load() != tc.want {
			t.Errorf("%s: %d requests, want %d; error %v", tc.name, sent.Load(), tc.want, err)
		}
	}
}

// An object is deleted with the policy. The garbage collector, which does not run here, removes the finalizers.
func TestDirectDeleteSetsPolicy(t *testing.T) {
	t.Parallel()

	c, namespace := clients[transport.Kubernetes], env.Namespace(t)

	for policy, want := range map[metav1.DeletionPropagation][]string{
		metav1.DeletePropagationBackground: nil,
		metav1.DeletePropagationForeground: {metav1.FinalizerDeleteDependents},
		metav1.DeletePropagationOrphan:     {metav1.FinalizerOrphanDependents},
	} {
		made := mustCreate(t, c, newOwnedConfigMap(namespace, strings.ToLower(string(policy)), nil))
		must.Do(t, c.Delete(t.Context(), transport.RefTo(made), policy))

		got, err := findOne(t.Context(), c, transport.RefTo(made), transport.Live)

		switch {
		case errors.Is(err, transport.ErrNotFound) != (len(want) == 0):
			t.Errorf("%s: want finalizers %v of the object, got error %v", policy, want, err)
		case err == nil && !slices.Equal(got.GetFinalizers(), want):
			t.Errorf("%s: finalizers %v, want %v", policy, got.GetFinalizers(), want)
		}
	}
}

// A delete gate deletes with the policy of its task.
func TestDeleteGateSetsPolicy(t *testing.T) {
	t.Parallel()

	for policy, finalizer := range map[string]string{"Foreground": metav1.FinalizerDeleteDependents, "Orphan": metav1.FinalizerOrphanDependents} {
		f := newFixture(t, newEntry("config", "web")+
			"    lifecycle:\n      delete: {when: {expression: deleting}, propagationPolicy: "+policy+"}\n")

		f.requireOutcomes(event{generation: 1}, "create/Absent")
		f.requireOutcomes(event{generation: 2, deleting: true}, "delete/DeleteGate...")

		if got := f.getObject(f.newConfigMap("web")); got == nil || !slices.Equal(got.GetFinalizers(), []string{finalizer}) {
			t.Errorf("%s: the deleted object is %v", policy, got)
		}
	}
}

func TestDirectErrors(t *testing.T) {
	t.Parallel()

	c, namespace := clients[transport.Kubernetes], env.Namespace(t)
	taken := mustCreate(t, c, newOwnedConfigMap(namespace, "taken", nil))

	// A user with read permission only.
	reader := newDirectClient(t, func(o *kubernetes.Options) { o.Config = env.User(t, "nobody") })

	namespaced := func(object *unstructured.Unstructured) *unstructured.Unstructured {
		object.SetKind("Namespace")
		delete(object.Object, "data")

		return object
	}
	secret := newOwnedConfigMap(namespace, "secret", nil)
	secret.SetKind("Secret")
	secret.Object["data"] = map[string]any{"password": "hunter2!"}

	unknown := newOwnedConfigMap(namespace, "unknown", nil)
	unknown.SetGroupVersionKind(schema.GroupVersionKind{Group: "example.io", Version: "v1", Kind: "Widget"})

	cases := map[string]struct {
		client   transport.Client
		object   *unstructured.Unstructured
		class    errclass.Class
		reason   string
		is       error
		wantText string
	}{
		"object exists":                        {object: taken, class: errclass.Transient, reason: transport.ReasonExists, is: transport.ErrExists},
		"missing namespace":                    {object: newOwnedConfigMap("nowhere", "web", nil), class: errclass.Transient, reason: transport.ReasonNoNamespace, is: transport.ErrNoNamespace, wantText: `namespaces "nowhere" not found`},
		"unknown kind":                         {object: unknown, class: errclass.Permanent, reason: transport.ReasonNoKind, is: transport.ErrNoKind},
		"invalid secret":                       {object: secret, class: errclass.Permanent, reason: transport.ReasonInvalid},
		"not permitted":                        {client: reader, object: newOwnedConfigMap(namespace, "web", nil), class: errclass.Permanent, reason: transport.ReasonForbidden, wantText: `User "nobody" cannot`},
		"no namespace given":                   {object: newOwnedConfigMap("", "web", nil), class: errclass.Permanent, reason: transport.ReasonInvalid, wantText: "set metadata.namespace"},
		"cluster-scoped kind with a namespace": {object: namespaced(newOwnedConfigMap(namespace, "web", nil)), class: errclass.Permanent, reason: transport.ReasonInvalid, wantText: "remove metadata.namespace"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			with := c
			if tc.client != nil {
				with = tc.client
			}

			object := tc.object.DeepCopy()
			object.SetResourceVersion("")

			_, err := with.Create(t.Context(), object)
			if err == nil || errclass.ClassOf(err) != tc.class || errclass.ReasonOf(err, "") != tc.reason || !strings.Contains(err.Error(), tc.wantText) {
				t.Errorf("Create() = %v (%s, %s), want %s %s with %q",
					err, errclass.ClassOf(err), errclass.ReasonOf(err, ""), tc.class, tc.reason, tc.wantText)
			}

			if tc.is != nil && !errors.Is(err, tc.is) {
				t.Errorf("Create() = %v, want %v", err, tc.is)
			}

			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error contains a secret: %v", err)
			}
		})
	}
}

// A quota refuses an object with the status of a missing permission. Unlike a permission, it ends when another object is
// deleted, so the adapter tries again.
func TestQuotaIsTransient(t *testing.T) {
	t.Parallel()

	c, namespace := clients[transport.Kubernetes], env.Namespace(t)
	amounts := corev1.ResourceList{"count/configmaps": resource.MustParse("0")}
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "none"}, Spec: corev1.ResourceQuotaSpec{Hard: amounts},
	}
	env.Create(t, quota)

	quota.Status = corev1.ResourceQuotaStatus{Hard: amounts, Used: amounts} // no controller calculates it
	must.Do(t, env.Client.Status().Update(t.Context(), quota))

	timing.WaitUntil(t, "the API server refuses the object", func() bool {
		object := newOwnedConfigMap(namespace, "web", nil)
		_, err := c.Create(t.Context(), object)
		must.Do(t, client.IgnoreNotFound(env.Client.Delete(t.Context(), object)))

		return err != nil && errclass.ClassOf(err) == errclass.Transient && errclass.ReasonOf(err, "") == errclass.ReasonQuotaExceeded
	})
}

// The API server quotes invalid input in its errors.
func TestDirectErrorsDoNotQuoteSecrets(t *testing.T) {
	t.Parallel()

	c, namespace := clients[transport.Kubernetes], env.Namespace(t)

	secret := newOwnedConfigMap(namespace, "token", nil)
	secret.SetKind("Secret")
	delete(secret.Object, "data")

	live := mustCreate(t, c, secret.DeepCopy())
	secret.Object["stringData"] = map[string]any{"password": int64(8675309)}

	_, _, err := c.Apply(t.Context(), live, secret)
	if err == nil || errclass.ClassOf(err) != errclass.Permanent || strings.Contains(err.Error(), "8675309") {
		t.Errorf("Apply() = %v (%s)", err, errclass.ClassOf(err))
	}

	secret.SetKind("ConfigMap")
	secret.Object["data"] = secret.Object["stringData"]
	delete(secret.Object, "stringData")

	live = mustCreate(t, c, newOwnedConfigMap(namespace, "token", nil))
	if _, _, err := c.Apply(t.Context(), live, secret); err == nil || !strings.Contains(err.Error(), "8675309") {
		t.Errorf("the server does not quote the value of a ConfigMap, so the test proves nothing: %v", err)
	}
}

func TestDirectUnreachableIsTransient(t *testing.T) {
	t.Parallel()

	c := newDirectClient(t, func(o *kubernetes.Options) {
		o.Config = env.User(t, "nobody")
		o.Config.Host = "https://127.0.0.1:1"
		o.Timeout = 5 * time.Second
	})

	_, err := findOne(t.Context(), c, transport.Ref{GVK: configMapKind(), Namespace: "x", Name: "y"}, transport.Cached)
	if err == nil || errclass.ClassOf(err) != errclass.Transient || errors.Is(err, transport.ErrNotFound) {
		t.Errorf("Find() = %v (%s), want a transient error", err, errclass.ClassOf(err))
	}
}
