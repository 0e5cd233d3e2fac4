// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runners_test

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/keep"
)

func newKeeper(t testing.TB) *keep.Keeper {
	t.Helper()

	operator, err := env.ClientAs("hyperfleet-runners")
	if err != nil {
		t.Fatal(err)
	}

	return &keep.Keeper{
		Client: operator, APIReader: operator, Area: "runners", IsShared: true, Role: keep.RoleName,
		Lists: []client.ObjectList{&v1alpha1.HypervisorClusterList{}, &v1alpha1.HypervisorMachineTemplateList{}},
	}
}

// reconcileOnce reconciles the template once.
func (w *templateFixture) reconcileOnce() {
	w.Helper()

	if _, err := w.reconciler.Reconcile(w.Context(), reconcile.Request{NamespacedName: w.objectKey()}); err != nil {
		w.Fatal(err)
	}
}

// If everything in a namespace is deleted, the credentials of the CI platform and the operator's role for them stay
// until the last claim of the template is gone. Nothing of the namespace stays.
func TestCredentialsOutliveClaims(t *testing.T) {
	t.Parallel()

	w := newTemplateFixture(t, nil)
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: w.namespace, Name: name} }
	claim := newClaim(w.namespace, "one")
	objects := []client.Object{
		&corev1.Secret{ObjectMeta: meta("secrets")}, &rbacv1.Role{ObjectMeta: meta(keep.RoleName)},
		&rbacv1.RoleBinding{ObjectMeta: meta(keep.RoleName), RoleRef: rbacv1.RoleRef{
			APIGroup: rbacv1.GroupName, Kind: "Role", Name: keep.RoleName,
		}},
		&v1alpha1.HypervisorMachineTemplate{ObjectMeta: meta("linux")},
	}

	for _, object := range append(objects[:3:3], claim) {
		env.Create(t, object)
	}

	w.reconcileOnce()

	for _, object := range objects {
		if err := env.Client.Delete(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}

	requireExisting := func(when string, want bool) {
		t.Helper()
		w.reconcileOnce()

		for _, object := range objects {
			err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(object), object)
			if exists := err == nil; exists != want || err != nil && !apierrors.IsNotFound(err) {
				t.Errorf("%s: %T %s exists: %t (%v)", when, object, object.GetName(), exists, err)
			}
		}
	}

	requireExisting("with a claim", true)

	if err := env.Client.Delete(t.Context(), claim); err != nil {
		t.Fatal(err)
	}

	requireExisting("without a claim", false)
}

// A template can't keep a Secret of another namespace that does not allow it.
func TestSecretsOfOthersAreNotKept(t *testing.T) {
	t.Parallel()

	other := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: env.Namespace(t), Name: "secrets"}}
	env.Create(t, other)

	w := newTemplateFixture(t, func(spec *v1alpha1.HypervisorMachineTemplateSpec) {
		spec.Bootstrap.Config.GitHub.Credentials.SecretKeyRef.Namespace = other.Namespace
	})

	for _, isAllowed := range []bool{false, true} {
		if isAllowed {
			other.Annotations = map[string]string{v1alpha1.AnnotationAllowedNamespaces: w.namespace}
			if err := env.Client.Update(t.Context(), other); err != nil {
				t.Fatal(err)
			}
		}

		w.reconcileOnce()

		if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(other), other); err != nil {
			t.Fatal(err)
		}

		if isKept := len(other.Finalizers) > 0; isKept != isAllowed {
			t.Errorf("the Secret allows the namespace: %t; it is kept: %t", isAllowed, isKept)
		}
	}
}

// namespaceCache is the client of an operator whose cache has one namespace.
type namespaceCache struct {
	client.Client

	namespace string
}

func (c namespaceCache) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	return c.Client.List(ctx, list, append(options, client.InNamespace(c.namespace))...)
}

// Templates in namespaces of different operators share a Secret. It is kept until the last of them is gone.
func TestSecretOfSeveralOperatorsIsKept(t *testing.T) {
	t.Parallel()

	shared := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: env.Namespace(t), Name: "secrets"}}
	env.Create(t, shared)

	var (
		keepers   []*keep.Keeper
		templates []client.Object
	)

	for range 2 {
		template := newTemplate(env.Namespace(t), "linux", "cluster")
		env.Create(t, template)

		keeper := newKeeper(t)
		keeper.Client = namespaceCache{keeper.Client, template.Namespace}

		if err := keeper.Keep(t.Context(), template, client.ObjectKeyFromObject(shared)); err != nil {
			t.Fatal(err)
		}

		keepers, templates = append(keepers, keeper), append(templates, template)
	}

	for i, keeper := range keepers {
		if err := keeper.Release(t.Context(), templates[i]); err != nil {
			t.Fatal(err)
		}

		if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(shared), shared); err != nil {
			t.Fatal(err)
		}

		if isKept, want := len(shared.Finalizers) > 0, i == 0; isKept != want {
			t.Errorf("after %d of 2 operators have released the Secret, it is kept: %t, want %t", i+1, isKept, want)
		}
	}
}
