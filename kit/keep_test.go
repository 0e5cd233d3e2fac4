// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kit_test

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/keep"
	"github.com/hyperfleet/hyperfleet/test/fixes"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

const (
	ownFinalizer  = "test.hyperfleet.io/own"
	keepFinalizer = v1alpha1.FinalizerKeptSecret + "test"
)

var errKilled = errors.New("the process was killed")

// killedClient is the client of a process that is killed at one of its writes: before it, or after it and before the
// process knows.
type killedClient struct {
	client.Client

	// left is the number of writes before the last one. isLost is whether the last one is made.
	left   int
	isLost bool
}

func (k *killedClient) Patch(ctx context.Context, obj client.Object, patch client.Patch, options ...client.PatchOption) error {
	k.left--

	if k.left < 0 && (k.left < -1 || !k.isLost) {
		return errKilled
	}

	err := k.Client.Patch(ctx, obj, patch, options...)
	if err == nil && k.left < 0 {
		return errKilled
	}

	return err
}

// keepFixture is a namespace with Secrets, and ConfigMaps as the objects that need them.
type keepFixture struct {
	t         *testing.T
	env       *kube.Env
	namespace string
	// operator has only the rights of the operator.
	operator client.Client
	client   *killedClient
	keeper   *keep.Keeper
	// kills is how many times the process was killed.
	kills int
}

func newKeepFixture(t *testing.T, env *kube.Env, left int, isLost bool) *keepFixture {
	t.Helper()

	w := &keepFixture{t: t, env: env, namespace: env.Namespace(t)}
	for _, name := range []string{"one", "two"} {
		env.Create(t, &corev1.Secret{ObjectMeta: w.meta(name)})
	}

	operator := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: w.namespace, Name: "operator"}
	env.Create(t, &rbacv1.Role{ObjectMeta: w.meta(keep.RoleName), Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get", "patch"}},
	}})
	env.Create(t, &rbacv1.RoleBinding{ObjectMeta: w.meta(keep.RoleName), Subjects: []rbacv1.Subject{operator}, RoleRef: rbacv1.RoleRef{
		APIGroup: rbacv1.GroupName, Kind: "Role", Name: keep.RoleName,
	}})
	env.Create(t, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}, Subjects: []rbacv1.Subject{operator}, RoleRef: rbacv1.RoleRef{
		APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: operatorRole,
	}})

	for _, name := range []string{"a", "b"} {
		object := &corev1.ConfigMap{ObjectMeta: w.meta(name)}
		object.Finalizers = []string{ownFinalizer}
		env.Create(t, object)
	}

	var err error
	if w.operator, err = client.New(env.ServiceAccount(t, w.namespace, operator.Name), client.Options{Scheme: env.Scheme}); err != nil {
		t.Fatal(err)
	}

	w.client = &killedClient{Client: w.operator, left: left, isLost: isLost}
	w.start()

	return w
}

// operatorRole is the operator's cluster-wide role, which allows no use of Secrets.
const operatorRole = "keep-test"

func createOperatorRole(t *testing.T, env *kube.Env) {
	t.Helper()
	env.Create(t, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: operatorRole}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list", "patch"}},
		{
			APIGroups: []string{rbacv1.GroupName}, Resources: []string{"roles", "rolebindings"},
			ResourceNames: []string{keep.RoleName}, Verbs: []string{"get", "patch"},
		},
	}})
}

func (w *keepFixture) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: w.namespace, Name: name}
}

// start starts the process.
func (w *keepFixture) start() {
	w.keeper = &keep.Keeper{
		Client: w.client, APIReader: w.operator, Area: "test", Role: keep.RoleName,
		Lists: []client.ObjectList{&corev1.ConfigMapList{}},
	}
}

// run runs one reconcile of an object, and again with a new process if the process is killed.
func (w *keepFixture) run(name string, reconcile func(ctx context.Context, object client.Object) error) {
	w.t.Helper()

	for range 10 {
		object := &corev1.ConfigMap{}

		err := w.env.Client.Get(w.t.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, object)
		if apierrors.IsNotFound(err) {
			return
		}

		if err == nil {
			err = reconcile(w.t.Context(), object)
		}

		if err == nil {
			return
		}

		if !strings.Contains(err.Error(), errKilled.Error()) {
			w.t.Fatal(err)
		}

		w.kills++
		w.client = &killedClient{Client: w.operator, left: 1000}
		w.start()
	}

	w.t.Fatal("the reconciles do not end")
}

func (w *keepFixture) keep(name string, secrets ...string) {
	w.t.Helper()
	w.run(name, func(ctx context.Context, object client.Object) error {
		var names []types.NamespacedName
		for _, secret := range secrets {
			names = append(names, types.NamespacedName{Namespace: w.namespace, Name: secret})
		}

		return w.keeper.Keep(ctx, object, names...)
	})
}

// delete deletes an object as its controller does.
func (w *keepFixture) delete(name string) {
	w.t.Helper()

	if err := w.env.Client.Delete(w.t.Context(), &corev1.ConfigMap{ObjectMeta: w.meta(name)}); err != nil {
		w.t.Fatal(err)
	}

	w.run(name, func(ctx context.Context, object client.Object) error {
		if err := w.keeper.Release(ctx, object); err != nil {
			return err
		}

		return w.client.Patch(ctx, object, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))
	})
}

// reporter is an object with conditions.
type reporter struct {
	client.Object

	conditions []metav1.Condition
}

func (o *reporter) StatusConditions() *[]metav1.Condition { return &o.conditions }

// requireFinalizers checks which of the objects have the finalizer.
func (w *keepFixture) requireFinalizers(when string, want map[string]bool) {
	w.t.Helper()

	objects := map[string]client.Object{
		"one": &corev1.Secret{ObjectMeta: w.meta("one")}, "two": &corev1.Secret{ObjectMeta: w.meta("two")},
		"role": &rbacv1.Role{ObjectMeta: w.meta(keep.RoleName)}, "binding": &rbacv1.RoleBinding{ObjectMeta: w.meta(keep.RoleName)},
	}
	for name, object := range objects {
		err := w.env.Client.Get(w.t.Context(), client.ObjectKeyFromObject(object), object)
		if err != nil && !apierrors.IsNotFound(err) {
			w.t.Fatal(err)
		}

		if got := err == nil && len(object.GetFinalizers()) > 0; got != want[name] {
			w.t.Errorf("%s, killed %d times: %s has the finalizers %v (%v)", when, w.kills, name, object.GetFinalizers(), err)
		}
	}
}

func TestKeeper(t *testing.T) {
	t.Parallel()

	env := kube.Start(t)
	createOperatorRole(t, env)

	for name, test := range map[string]func(*testing.T, *kube.Env){
		"a process that is killed": testKeptSecrets, "objects that end together": testSecretsOfObjectsThatEndTogether,
		"a Secret that is being deleted": testSecretThatIsBeingDeleted, "no permission": testMissingPermission,
		"the permission is gone":   testLostPermission,
		"a call that does not end": testSecretsOfOtherNamespaces,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, env)
		})
	}
}

// Secrets are kept until the last object that needs them has released them, whenever the process is killed.
func testKeptSecrets(t *testing.T, env *kube.Env) {
	t.Helper()

	for _, isLost := range []bool{false, true} {
		for left := 0; ; left++ {
			w := newKeepFixture(t, env, left, isLost)

			w.keep("a", "one", "missing", "")
			w.keep("b", "one", "one")
			w.requireFinalizers("both need the first", map[string]bool{"one": true, "role": true, "binding": true})

			for _, object := range []client.Object{
				&corev1.Secret{ObjectMeta: w.meta("one")}, &rbacv1.Role{ObjectMeta: w.meta(keep.RoleName)},
				&rbacv1.RoleBinding{ObjectMeta: w.meta(keep.RoleName)},
			} {
				if err := env.Client.Delete(t.Context(), object); err != nil {
					t.Fatal(err)
				}
			}

			w.keep("a", "two")
			w.requireFinalizers("each needs one", map[string]bool{"one": true, "two": true, "role": true, "binding": true})
			w.keep("b", "one")
			w.delete("b")
			w.requireFinalizers("only one is left", map[string]bool{"two": true, "role": true, "binding": true})
			w.delete("a")
			w.requireFinalizers("none is left", nil)

			if t.Failed() || w.kills == 0 {
				break
			}
		}
	}
}

// Objects that end at the same time do not wait for each other, and leave nothing.
func testSecretsOfObjectsThatEndTogether(t *testing.T, env *kube.Env) {
	t.Helper()

	w := newKeepFixture(t, env, 1000, false)
	w.keep("a", "one", "two")
	w.keep("b", "one")

	for _, name := range []string{"a", "b"} {
		if err := w.env.Client.Delete(t.Context(), &corev1.ConfigMap{ObjectMeta: w.meta(name)}); err != nil {
			t.Fatal(err)
		}
	}

	// Both have their last step behind them before the finalizer of either is removed.
	w.run("a", w.release)
	w.run("b", w.release)
	w.requireFinalizers("none needs one", nil)
}

// blockedReader is a client of an API server that does not answer for one namespace.
type blockedReader struct {
	client.Reader

	namespace string
	isBlocked chan struct{}
}

func (r *blockedReader) Get(ctx context.Context, key client.ObjectKey, obj client.Object, options ...client.GetOption) error {
	if key.Namespace == r.namespace {
		close(r.isBlocked)
		<-ctx.Done()

		return ctx.Err()
	}

	return r.Reader.Get(ctx, key, obj, options...)
}

// An object whose call takes long does not delay those of other namespaces.
func testSecretsOfOtherNamespaces(t *testing.T, env *kube.Env) {
	t.Helper()

	slow, other := newKeepFixture(t, env, 1000, false), newKeepFixture(t, env, 1000, false)
	reader := &blockedReader{Reader: env.Client, namespace: slow.namespace, isBlocked: make(chan struct{})}
	keeper := &keep.Keeper{Client: env.Client, APIReader: reader, Area: "test", Lists: []client.ObjectList{&corev1.ConfigMapList{}}}

	slowCtx, end := context.WithCancel(t.Context())
	ended := make(chan error)

	keepOne := func(ctx context.Context, w *keepFixture) error {
		object := &corev1.ConfigMap{}
		if err := env.Client.Get(ctx, client.ObjectKey{Namespace: w.namespace, Name: "a"}, object); err != nil {
			return err
		}

		return keeper.Keep(ctx, object, types.NamespacedName{Namespace: w.namespace, Name: "one"})
	}

	go func() { ended <- keepOne(slowCtx, slow) }()

	<-reader.isBlocked

	done := make(chan error, 1)
	go func() { done <- keepOne(t.Context(), other) }()

	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("an object waits for one of another namespace")
	}

	end()

	if err := <-ended; err == nil {
		t.Error("the call that does not end has no error")
	}
}

func (w *keepFixture) release(ctx context.Context, object client.Object) error {
	return w.keeper.Release(ctx, object)
}

// A Secret that is being deleted is not promised to another object.
func testSecretThatIsBeingDeleted(t *testing.T, env *kube.Env) {
	t.Helper()

	w := newKeepFixture(t, env, 1000, false)
	w.keep("a", "one")

	if err := w.env.Client.Delete(t.Context(), &corev1.Secret{ObjectMeta: w.meta("one")}); err != nil {
		t.Fatal(err)
	}

	w.keep("a", "one") // it has it already

	w.run("b", func(ctx context.Context, object client.Object) error {
		err := w.keeper.Keep(ctx, object, types.NamespacedName{Namespace: w.namespace, Name: "one"})
		if result := keep.Report(&reporter{Object: object}, err); !result.IsStalled() || result.Reason() != keep.ReasonSecretDeleting {
			return fmt.Errorf("the object needs a Secret that is being deleted: %w", err)
		}

		return nil
	})

	w.delete("a")
	w.requireFinalizers("none is left", nil)
}

// An operator without permission for the Secret works as before, and says which permission it lacks.
func testMissingPermission(t *testing.T, env *kube.Env) {
	t.Helper()

	w := newKeepFixture(t, env, 1000, false)

	unprivileged, err := client.New(env.ServiceAccount(t, w.namespace, "stranger"), client.Options{Scheme: env.Scheme})
	if err != nil {
		t.Fatal(err)
	}

	w.operator, w.client = unprivileged, &killedClient{Client: unprivileged, left: 1000}
	w.start()
	w.run("a", func(ctx context.Context, object client.Object) error {
		err := w.keeper.Keep(ctx, object, types.NamespacedName{Namespace: w.namespace, Name: "one"})
		if reason := errclass.ReasonOf(err, ""); reason != credential.ReasonSecretForbidden {
			return fmt.Errorf("the operator must not read the Secret: %w", err)
		}

		if result := keep.Report(&reporter{Object: object}, err); !result.IsDone() {
			t.Errorf("the object waits with the reason %s", result.Reason())
		}

		return nil
	})
	w.requireFinalizers("the Secret is not kept", nil)
}

// An operator that has lost its permission for a Secret names the command that removes its finalizer.
func testLostPermission(t *testing.T, env *kube.Env) {
	t.Helper()

	w := newKeepFixture(t, env, 1000, false)
	w.keep("a", "one")
	w.run("a", func(ctx context.Context, object client.Object) error {
		// In a namespace that is being deleted, nobody can create the role binding again.
		binding := &rbacv1.RoleBinding{ObjectMeta: w.meta(keep.RoleName)}
		removal := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))

		if err := errors.Join(env.Client.Patch(ctx, binding, removal), env.Client.Delete(ctx, binding)); err != nil {
			return err
		}

		timing.WaitUntil(t, "the permission is gone", func() bool {
			return apierrors.IsForbidden(w.operator.Get(ctx, client.ObjectKey{Namespace: w.namespace, Name: "one"}, &corev1.Secret{}))
		})

		err := w.keeper.Release(ctx, object)
		if reason := errclass.ReasonOf(err, ""); reason != credential.ReasonSecretForbidden {
			return fmt.Errorf("the operator must not change the Secret: %w", err)
		}

		fixes.Kubectl(t, env, err.Error(), "kubectl", "env 'KUBE_EDITOR=sed -i /"+path.Base(keepFinalizer)+"/d' kubectl")

		return nil
	})
	w.requireFinalizers("the Secret is released", map[string]bool{"role": true})
}
