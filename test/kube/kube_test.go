// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/test/kube"
)

var env *kube.Env

func TestMain(m *testing.M) {
	kube.Main(m, func(e *kube.Env) { env = e }, kube.WithCRDs("testdata"), kube.WithControllerManager())
}

func widgets() *unstructured.UnstructuredList {
	list := &unstructured.UnstructuredList{}
	list.SetAPIVersion("test.hyperfleet.io/v1")
	list.SetKind("WidgetList")

	return list
}

func clientFor(t *testing.T, config *rest.Config) client.Client {
	t.Helper()

	c, err := client.New(config, client.Options{Scheme: env.Scheme})
	if err != nil {
		t.Fatal(err)
	}

	return c
}

// eventually waits for something that the control plane does in its own time.
func eventually(t *testing.T, what string, check func(context.Context) (bool, error)) {
	t.Helper()

	if err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true, check); err != nil {
		t.Fatalf("wait for %s: %v", what, err)
	}
}

func TestCredentialsMayDoWhatRBACSays(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		config    *rest.Config
		forbidden bool
	}{
		"administrator":                     {config: env.Config},
		"service account with a role":       {config: env.ServiceAccount(t, "widgets", "reader")},
		"service account without a role":    {config: env.ServiceAccount(t, "widgets", "other"), forbidden: true},
		"user in a group with a role":       {config: env.User(t, "ann", "readers")},
		"user without a role":               {config: env.User(t, "bob", "writers"), forbidden: true},
		"the same account asked for twice":  {config: env.ServiceAccount(t, "widgets", "reader")},
		"account name in another namespace": {config: env.ServiceAccount(t, "gadgets", "reader"), forbidden: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			config, err := clientcmd.BuildConfigFromFlags("", env.Kubeconfig(t, tc.config))
			if err != nil {
				t.Fatal(err)
			}

			list := widgets()

			err = clientFor(t, config).List(t.Context(), list, client.InNamespace("default"))
			if apierrors.IsForbidden(err) != tc.forbidden || (err == nil && len(list.Items) != 1) {
				t.Errorf("list = %d items, %v; want forbidden %v", len(list.Items), err, tc.forbidden)
			}
		})
	}
}

func TestGarbageIsCollected(t *testing.T) {
	t.Parallel()

	namespace := env.Namespace(t)
	owner := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "owner"}}

	if err := env.Client.Create(t.Context(), owner); err != nil {
		t.Fatal(err)
	}

	child := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: "child",
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID}},
	}}
	if err := env.Client.Create(t.Context(), child); err != nil {
		t.Fatal(err)
	}

	if err := env.Client.Delete(t.Context(), owner); err != nil {
		t.Fatal(err)
	}

	eventually(t, "the child's end", func(ctx context.Context) (bool, error) {
		err := env.Client.Get(ctx, client.ObjectKeyFromObject(child), &corev1.ConfigMap{})

		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	})
}

func TestNamespacesAreDeleted(t *testing.T) {
	var namespace string

	t.Run("makes one", func(t *testing.T) { namespace = env.Namespace(t) })

	eventually(t, "the namespace's end", func(ctx context.Context) (bool, error) {
		err := env.Client.Get(ctx, client.ObjectKey{Name: namespace}, &corev1.Namespace{})

		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	})
}

// A CRD that Apply has returned from is one whose kinds every client finds: one that has asked
// for them before, and one that knows nothing yet.
func TestApplyReturnsWhenKindsAreFound(t *testing.T) {
	t.Parallel()

	before := clientFor(t, env.Config)

	for i := range 8 {
		group := fmt.Sprintf("late-%d.hyperfleet.io", i)
		list := &unstructured.UnstructuredList{}
		list.SetAPIVersion(group + "/v1")
		list.SetKind("LateList")

		if err := before.List(t.Context(), list); !meta.IsNoMatchError(err) {
			t.Fatalf("list %s before its CRD is there: %v", group, err)
		}

		path := filepath.Join(t.TempDir(), "crd.yaml")
		if err := os.WriteFile(path, fmt.Appendf(nil, lateCRD, group), 0o600); err != nil {
			t.Fatal(err)
		}

		env.Apply(t, path)

		for name, c := range map[string]client.Client{"asked before": before, "knows nothing yet": clientFor(t, env.Config)} {
			if err := c.List(t.Context(), list); err != nil {
				t.Errorf("list %s by a client that %s: %v", group, name, err)
			}
		}
	}
}

const lateCRD = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: lates.%[1]s}
spec:
  group: %[1]s
  names: {kind: Late, listKind: LateList, plural: lates, singular: late}
  scope: Cluster
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
`
