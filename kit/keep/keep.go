// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package keep

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

const (
	// Condition is False if the operator can't keep a Secret of the object. Otherwise, it is absent.
	Condition = "SecretsKept"
	// ReasonSecretDeleting is the reason of an object that needs a Secret that is being deleted.
	ReasonSecretDeleting = "SecretDeleting" // #nosec G101 -- a word

	// checkInterval is how often Keep looks whether a Secret still has the finalizer, because a person may remove it.
	checkInterval = 10 * time.Minute
	// maxCacheLag is how long a cache may take to receive a write.
	maxCacheLag = 10 * time.Second
)

// Keeper prevents the deletion of Secrets that an area needs to clean up after its objects, for example to
// return a rented server. It adds the area's finalizer to each of the Secrets, and to the role that allows the
// operator to use the Secrets of the namespace. An annotation of the object lists the Secrets that it keeps, so
// that the finalizers can be removed even if its spec has changed. If several objects keep a Secret, the
// finalizer is removed with the last of them.
type Keeper struct {
	// Client patches the objects and their Secrets, and lists the objects from a cache unless IsShared is true.
	Client client.Client
	// APIReader reads from the API server, because no Secret is kept in a cache.
	APIReader client.Reader
	// Area is the name of the area.
	Area string
	// Lists are empty lists of the kinds whose objects need Secrets.
	Lists []client.ObjectList
	// IsShared is whether objects also need Secrets of other namespaces than their own.
	IsShared bool
	// Role is the name of the Role and of the RoleBinding that allow the operator to use the Secrets of a namespace
	// (deploy/namespace-secrets). They are kept, too, because a namespace that is being deleted loses them as well. It
	// is empty if the operator has a cluster-wide role for Secrets.
	Role string
	// Clock is the source of time. Default: the real clock.
	Clock clock.PassiveClock

	mu sync.Mutex
	// groups has a group for each namespace with objects. If IsShared is true, it has one group for all
	// namespaces, whose key is empty.
	groups map[string]*group
}

// group is the state of the objects that may keep the same Secrets. A call that waits for the API server locks
// only the group of its object.
type group struct {
	*Keeper

	// slot is held by the call that uses the group. It is a channel and not a mutex, so that a call that waits ends with
	// its context.
	slot chan struct{}
	// users is how many calls use the group, or wait for it.
	users int
	// checked is when a Secret was last seen with the finalizer.
	checked map[types.NamespacedName]time.Time
	// kept has the Secrets that objects keep, including those that the cache does not show yet. released has
	// the objects that still exist, but keep no Secret any longer.
	kept     map[types.UID]keptSecrets
	released map[types.UID]bool
}

// lock waits until no other call uses the group of an object, or until ctx ends. The group is locked until unlock is called.
func (k *Keeper) lock(ctx context.Context, obj client.Object) (locked *group, unlock func(), err error) {
	key := obj.GetNamespace()
	if k.IsShared {
		key = ""
	}

	k.mu.Lock()

	g := k.groups[key]
	if g == nil {
		g = &group{
			Keeper: k, slot: make(chan struct{}, 1), checked: map[types.NamespacedName]time.Time{},
			kept: map[types.UID]keptSecrets{}, released: map[types.UID]bool{},
		}

		if k.groups == nil {
			k.groups = map[string]*group{}
		}

		k.groups[key] = g
	}

	g.users++
	k.mu.Unlock()

	stopUsing := func() {
		k.mu.Lock()
		defer k.mu.Unlock()

		g.users--
		if g.users == 0 && len(g.checked)+len(g.kept)+len(g.released) == 0 {
			delete(k.groups, key)
		}
	}

	select {
	case g.slot <- struct{}{}:
		return g, func() { <-g.slot; stopUsing() }, nil
	case <-ctx.Done():
		stopUsing()

		return nil, nil, fmt.Errorf("keep Secrets of %s: wait for those of another object: %w", obj.GetName(), ctx.Err())
	}
}

// keptSecrets are the Secrets that an object keeps since a write at the time since.
type keptSecrets struct {
	names []types.NamespacedName
	since time.Time
}

// Keep adds the finalizers to the Secrets that an object needs, and removes those from the Secrets that it no
// longer needs. The object must already have its own finalizer, and must not be an object of a cache. Keep
// ignores Secrets without a name and Secrets that do not exist. An error of class Configuration says what to
// do.
func (k *Keeper) Keep(ctx context.Context, obj client.Object, secrets ...types.NamespacedName) error {
	g, unlock, err := k.lock(ctx, obj)
	if err != nil {
		return err
	}
	defer unlock()

	recorded := readRecord(obj)

	var desired []types.NamespacedName

	for _, name := range secrets {
		if name.Name == "" || slices.Contains(desired, name) {
			continue
		}

		exists, err := g.checkSecret(ctx, name, slices.Contains(recorded, name))
		if err != nil {
			return err
		}

		if exists {
			desired = append(desired, name)
		}
	}

	// The record is written before the finalizers, and changed after them, so that no finalizer is forgotten.
	if err := g.writeRecord(ctx, obj, append(slices.Clone(recorded), desired...)); err != nil {
		return err
	}

	for _, name := range desired {
		if err := g.addFinalizers(ctx, name); err != nil {
			return err
		}
	}

	if err := g.release(ctx, obj, desired); err != nil {
		return err
	}

	return g.writeRecord(ctx, obj, desired)
}

// Report returns the result of the step that reports an error of Keep. If a Secret is being deleted, the object waits for
// another Secret. If the operator has no permission to keep a Secret, the object has a warning and its steps continue.
func Report(obj step.Object, err error) step.Result {
	switch {
	case err == nil:
		meta.RemoveStatusCondition(obj.StatusConditions(), Condition)

		return step.Done()
	case errclass.ReasonOf(err, "") == ReasonSecretDeleting:
		return step.Stall(ReasonSecretDeleting, err.Error())
	case errclass.ClassOf(err) == errclass.Configuration:
		return step.Done().WithCondition(Condition, metav1.ConditionFalse, errclass.ReasonOf(err, ""), err.Error())
	default:
		return step.Fail(err)
	}
}

// ReleaseStep is the last step of the deletion of an object, after the object has returned everything. It writes the
// status, which records this, before it calls Release.
func (k *Keeper) ReleaseStep(ctx context.Context, obj client.Object) step.Result {
	if err := step.SaveStatus(ctx); err != nil {
		return step.Fail(err)
	}

	if err := k.Release(ctx, obj); err != nil {
		return step.FromError(err, 0)
	}

	return step.Done()
}

// Release removes the finalizers from the Secrets of an object that is being deleted, unless other objects keep
// the Secrets.
func (k *Keeper) Release(ctx context.Context, obj client.Object) error {
	g, unlock, err := k.lock(ctx, obj)
	if err != nil {
		return err
	}
	defer unlock()

	if err := g.release(ctx, obj, nil); err != nil {
		return err
	}

	g.released[obj.GetUID()] = true
	delete(g.kept, obj.GetUID())

	return nil
}

// readRecord returns the Secrets that an object keeps. An entry without a name means the role of a namespace.
func readRecord(obj metav1.Object) []types.NamespacedName {
	var out []types.NamespacedName

	for text := range strings.SplitSeq(obj.GetAnnotations()[v1alpha1.AnnotationKeptSecrets], ",") {
		if namespace, name, ok := strings.Cut(text, "/"); ok {
			out = append(out, types.NamespacedName{Namespace: namespace, Name: name})
		}
	}

	return out
}

// writeRecord writes to the object which Secrets it keeps.
func (g *group) writeRecord(ctx context.Context, obj client.Object, names []types.NamespacedName) error {
	var texts []string
	for _, name := range names {
		texts = append(texts, name.String())
	}

	slices.Sort(texts)
	text := strings.Join(slices.Compact(texts), ",")

	if obj.GetAnnotations()[v1alpha1.AnnotationKeptSecrets] == text {
		return nil
	}

	before, ok := obj.DeepCopyObject().(client.Object)
	if !ok {
		return fmt.Errorf("copy %T: the copy is not a client object", obj)
	}

	annotations := maps.Clone(obj.GetAnnotations())
	if annotations == nil {
		annotations = map[string]string{}
	}

	if text == "" {
		delete(annotations, v1alpha1.AnnotationKeptSecrets)
	} else {
		annotations[v1alpha1.AnnotationKeptSecrets] = text
	}

	obj.SetAnnotations(annotations)

	if err := g.Client.Patch(ctx, obj, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("record which secrets %s keeps: %w", client.ObjectKeyFromObject(obj), err)
	}

	now := g.clock().Now()
	maps.DeleteFunc(g.kept, func(_ types.UID, old keptSecrets) bool { return now.Sub(old.since) > maxCacheLag })
	g.kept[obj.GetUID()] = keptSecrets{names: names, since: now}

	return nil
}

// checkSecret returns whether a Secret exists, and an error if it can't be kept. isKept is whether the object already
// keeps it.
func (g *group) checkSecret(ctx context.Context, name types.NamespacedName, isKept bool) (exists bool, err error) {
	if checked, ok := g.checked[name]; ok && isKept && g.clock().Since(checked) < checkInterval {
		return true, nil
	}

	delete(g.checked, name)

	secret := newMetadata(corev1.SchemeGroupVersion.WithKind("Secret"), name)

	err = g.APIReader.Get(ctx, name, secret)

	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, wrapKeepError(err, "get", name)
	case secret.DeletionTimestamp.IsZero(), isKept && controllerutil.ContainsFinalizer(secret, g.finalizer()):
		return true, nil
	default:
		return false, newDeletingError(name)
	}
}

func newDeletingError(name types.NamespacedName) error {
	return errclass.New(errclass.Configuration, ReasonSecretDeleting,
		"keep secret %s: it is being deleted: wait until it is gone, and create it again", name)
}

// addFinalizers puts the area's finalizer on a Secret, and on the role for its namespace.
func (g *group) addFinalizers(ctx context.Context, name types.NamespacedName) error {
	if _, ok := g.checked[name]; ok {
		return nil
	}

	if err := g.changeRoleFinalizers(ctx, name, controllerutil.AddFinalizer); err != nil {
		return err
	}

	secret := newMetadata(corev1.SchemeGroupVersion.WithKind("Secret"), name)
	if err := g.changeFinalizers(ctx, secret, controllerutil.AddFinalizer); err != nil {
		return wrapKeepError(err, "patch", name)
	}

	if !controllerutil.ContainsFinalizer(secret, g.finalizer()) {
		return newDeletingError(name)
	}

	g.checked[name] = g.clock().Now()

	return nil
}

// release removes the area's finalizer from the Secrets that an object has kept and no longer needs, unless
// another object keeps them. Then it removes the finalizer from the role of each namespace in which no Secret
// is kept. It keeps the roles until then, because without them the operator cannot read the Secrets. In
// between, the object's annotation says that only the roles are left.
func (g *group) release(ctx context.Context, obj client.Object, needed []types.NamespacedName) error {
	recorded := readRecord(obj)
	released := slices.DeleteFunc(slices.Clone(recorded), func(name types.NamespacedName) bool {
		return slices.Contains(needed, name)
	})

	if len(released) == 0 {
		return nil
	}

	others, err := g.listOthers(ctx, obj)
	if err != nil {
		return err
	}

	others = append(others, needed...)

	var roles []types.NamespacedName

	for _, name := range released {
		roles = append(roles, types.NamespacedName{Namespace: name.Namespace})

		if name.Name == "" || slices.Contains(others, name) {
			continue
		}

		delete(g.checked, name)

		secret := newMetadata(corev1.SchemeGroupVersion.WithKind("Secret"), name)
		if err := g.changeFinalizers(ctx, secret, controllerutil.RemoveFinalizer); err != nil && !apierrors.IsNotFound(err) {
			return g.wrapReleaseError(err, name)
		}
	}

	if err := g.writeRecord(ctx, obj, append(slices.Clone(needed), roles...)); err != nil {
		return err
	}

	for _, role := range roles {
		if slices.ContainsFunc(others, func(other types.NamespacedName) bool { return other.Namespace == role.Namespace }) {
			continue
		}

		if err := g.changeRoleFinalizers(ctx, role, controllerutil.RemoveFinalizer); err != nil {
			return err
		}
	}

	return nil
}

// changeRoleFinalizers changes the finalizers of the role for the namespace of a Secret. The operator needs the
// permission of its cluster-wide role for this. If it has no such permission, or if the namespace has no such
// role, the operator has access to the Secrets in another way, and changeRoleFinalizers does nothing.
func (k *Keeper) changeRoleFinalizers(
	ctx context.Context, name types.NamespacedName, change func(client.Object, string) bool,
) error {
	if k.Role == "" {
		return nil
	}

	role := types.NamespacedName{Namespace: name.Namespace, Name: k.Role}

	for _, kind := range []string{"Role", "RoleBinding"} {
		err := k.changeFinalizers(ctx, newMetadata(rbacv1.SchemeGroupVersion.WithKind(kind), role), change)
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
			return wrapKeepError(err, "patch", name)
		}
	}

	return nil
}

// listOthers returns the Secrets that other objects of the area keep.
func (g *group) listOthers(ctx context.Context, obj client.Object) ([]types.NamespacedName, error) {
	out, existing := []types.NamespacedName{}, map[types.UID]bool{}

	for _, empty := range g.Lists {
		list, ok := empty.DeepCopyObject().(client.ObjectList)
		if !ok {
			return nil, fmt.Errorf("copy %T: the copy is not a list", empty)
		}

		var err error
		if g.IsShared { // the cache may lack namespaces that other operators serve
			err = g.APIReader.List(ctx, list)
		} else {
			err = g.Client.List(ctx, list, client.UnsafeDisableDeepCopy, client.InNamespace(obj.GetNamespace()))
		}

		if err != nil {
			return nil, fmt.Errorf("list objects that keep secrets: %w", err)
		}

		err = meta.EachListItem(list, func(item runtime.Object) error {
			other, err := meta.Accessor(item)
			if err != nil {
				return err
			}

			existing[other.GetUID()] = true
			if other.GetUID() != obj.GetUID() && !g.released[other.GetUID()] {
				out = append(out, readRecord(other)...)
			}

			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("list objects that keep secrets: %w", err)
		}
	}

	maps.DeleteFunc(g.released, func(uid types.UID, _ bool) bool { return !existing[uid] })

	for uid, kept := range g.kept {
		if uid != obj.GetUID() && g.clock().Since(kept.since) <= maxCacheLag {
			out = append(out, kept.names...)
		}
	}

	return slices.DeleteFunc(out, func(name types.NamespacedName) bool { return name.Name == "" }), nil
}

// changeFinalizers changes the finalizers of an object on the API server.
func (k *Keeper) changeFinalizers(
	ctx context.Context, obj *metav1.PartialObjectMetadata, change func(client.Object, string) bool,
) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if err := k.APIReader.Get(ctx, client.ObjectKeyFromObject(obj), obj); err != nil {
			return err
		}

		if !obj.DeletionTimestamp.IsZero() && !controllerutil.ContainsFinalizer(obj, k.finalizer()) {
			return nil // nobody can add a finalizer any more
		}

		before := obj.DeepCopy()
		if !change(obj, k.finalizer()) {
			return nil
		}

		return k.Client.Patch(ctx, obj, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	})
}

// RemoveFinalizers removes the finalizers of all areas from all Secrets and roles. It is for an operator that is gone.
func RemoveFinalizers(ctx context.Context, c client.Client) error {
	for _, kind := range []schema.GroupVersionKind{
		corev1.SchemeGroupVersion.WithKind("SecretList"),
		rbacv1.SchemeGroupVersion.WithKind("RoleList"), rbacv1.SchemeGroupVersion.WithKind("RoleBindingList"),
	} {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(kind)

		if err := c.List(ctx, list); err != nil {
			return fmt.Errorf("list objects with finalizers: %w", err)
		}

		for i := range list.Items {
			object := &list.Items[i]
			before := object.DeepCopy()

			object.Finalizers = slices.DeleteFunc(object.Finalizers, func(finalizer string) bool {
				return strings.HasPrefix(finalizer, v1alpha1.FinalizerKeptSecret)
			})
			if len(object.Finalizers) == len(before.Finalizers) {
				continue
			}

			patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
			if err := client.IgnoreNotFound(c.Patch(ctx, object, patch)); err != nil {
				return fmt.Errorf("remove the finalizer of %s %s: %w", strings.TrimSuffix(kind.Kind, "List"),
					client.ObjectKeyFromObject(object), err)
			}
		}
	}

	return nil
}

// RoleName is the name of the role in deploy/namespace-secrets.
const RoleName = "hyperfleet-secrets" // #nosec G101 -- a name

func newMetadata(kind schema.GroupVersionKind, name types.NamespacedName) *metav1.PartialObjectMetadata {
	out := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
	out.SetGroupVersionKind(kind)

	return out
}

// wrapKeepError converts an error of the API server into an error with a class, a reason and the fix.
func wrapKeepError(err error, verb string, name types.NamespacedName) error {
	if apierrors.IsForbidden(err) {
		return errclass.New(errclass.Configuration, credential.ReasonSecretForbidden,
			"keep secret %s: the operator has no permission: grant its service account `%s` on secrets in namespace %s",
			name, verb, name.Namespace)
	}

	return errclass.New(errclass.Transient, credential.ReasonSecretUnavailable, "keep secret %s: %w", name, err)
}

// wrapReleaseError is like wrapKeepError, for a Secret that is no longer needed. In a namespace that is being
// deleted, nobody can create a role, so the message does not ask for one.
func (k *Keeper) wrapReleaseError(err error, name types.NamespacedName) error {
	if !apierrors.IsForbidden(err) {
		return wrapKeepError(err, "patch", name)
	}

	return errclass.New(errclass.Configuration, credential.ReasonSecretForbidden,
		"release secret %s: the operator has no permission: remove the finalizer %s from the secret with "+
			"`kubectl -n %s edit secret %s`", name, k.finalizer(), name.Namespace, name.Name)
}

func (k *Keeper) finalizer() string { return v1alpha1.FinalizerKeptSecret + k.Area }

func (k *Keeper) clock() clock.PassiveClock {
	if k.Clock != nil {
		return k.Clock
	}

	return clock.RealClock{}
}
