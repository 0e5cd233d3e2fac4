// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package uninstall

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/deploy"
)

// partOf is the label of what deploy/base makes.
var partOf = client.MatchingLabels{"app.kubernetes.io/part-of": "hyperfleet"} //nolint:gochecknoglobals // a constant

// uninstaller removes one installation.
type uninstaller struct {
	client    client.Client
	namespace string
	out       io.Writer
	clock     clock.WithTicker
	keepCRDs  bool
	drainOnly bool
}

// inventory is what there is of an installation.
type inventory struct {
	claims []v1alpha1.MachineClaim
	// others are objects of the areas that stand for hosts and clusters, by their kinds.
	others []string
	// counts of the runners area's objects but claims, by their kinds.
	counts map[string]int
}

// look reads what there is.
func (u *uninstaller) look(ctx context.Context) (*inventory, error) {
	out := &inventory{counts: map[string]int{}}

	var err error
	if out.claims, err = u.claims(ctx); err != nil || u.drainOnly {
		return out, err
	}

	crds, err := definitions()
	if err != nil {
		return nil, err
	}

	for _, crd := range crds {
		n, err := u.count(ctx, crd)
		if err != nil {
			return nil, err
		}

		kind := crd.Spec.Names.Kind

		switch {
		case n == 0 || kind == "MachineClaim":
		case crd.Spec.Group == v1alpha1.GroupVersion.Group && kind != "DNSRegistration":
			out.counts[kind] = n
		default:
			out.others = append(out.others, fmt.Sprintf("%d %s", n, crd.Spec.Names.Plural))
		}
	}

	return out, nil
}

// definitions are the kinds that this program knows.
func definitions() ([]apiextensionsv1.CustomResourceDefinition, error) {
	var out []apiextensionsv1.CustomResourceDefinition

	err := fs.WalkDir(deploy.CRDs, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}

		text, err := fs.ReadFile(deploy.CRDs, path)
		if err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}

		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.Unmarshal(text, &crd); err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}

		out = append(out, crd)

		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the kinds: %w", err)
	}

	return out, nil
}

// count counts the objects of a kind; none where the cluster does not have it.
func (u *uninstaller) count(ctx context.Context, crd apiextensionsv1.CustomResourceDefinition) (int, error) {
	var list metav1.PartialObjectMetadataList

	list.SetGroupVersionKind(kindOf(crd).GroupVersionKind())

	err := u.client.List(ctx, &list)
	if meta.IsNoMatchError(err) {
		return 0, nil
	}

	if client.IgnoreNotFound(err) != nil {
		return 0, fmt.Errorf("list %s: %w", crd.Spec.Names.Plural, err)
	}

	return len(list.Items), nil
}

// kindOf is an object of the kind, without a name.
func kindOf(crd apiextensionsv1.CustomResourceDefinition) *unstructured.Unstructured {
	out := &unstructured.Unstructured{}
	out.SetAPIVersion(crd.Spec.Group + "/" + crd.Spec.Versions[0].Name)
	out.SetKind(crd.Spec.Names.Kind)

	return out
}

func (u *uninstaller) claims(ctx context.Context) ([]v1alpha1.MachineClaim, error) {
	var claims v1alpha1.MachineClaimList

	err := u.client.List(ctx, &claims)
	if err != nil && !meta.IsNoMatchError(err) && client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("list machine claims: %w", err)
	}

	return claims.Items, nil
}

// print says what there is.
func (u *uninstaller) print(i *inventory) {
	w := u.out

	if u.drainOnly {
		_, _ = fmt.Fprintf(w, "%s\n%s", english.Plural(len(i.claims), "machine", ""), machines(i.claims))

		return
	}

	if len(i.claims)+len(i.counts)+len(i.others) == 0 {
		_, _ = fmt.Fprintln(w, "There are no objects of HyperFleet in this cluster; its operator, roles and kinds may be there.")

		return
	}

	_, _ = fmt.Fprintf(w, "%s\n%s", english.Plural(len(i.claims), "machine", ""), machines(i.claims))

	kinds := make([]string, 0, len(i.counts))
	for kind, n := range i.counts {
		kinds = append(kinds, fmt.Sprintf("%d of kind %s\n", n, kind))
	}

	slices.Sort(kinds)

	_, _ = io.WriteString(w, strings.Join(kinds, ""))
}

// machines says of each machine where it is and what it waits for, a line for each.
func machines(claims []v1alpha1.MachineClaim) string {
	var out strings.Builder

	for i := range claims {
		claim := &claims[i]
		fmt.Fprintf(&out, "  %s/%s", claim.Namespace, claim.Name)

		if vm := claim.Status.VMRef; vm != nil {
			fmt.Fprintf(&out, "  VM %s on node %s of HypervisorCluster %s", vm.VMID, vm.Node, vm.HypervisorCluster)
		}

		fmt.Fprintf(&out, "  %s", claim.Status.Phase)

		if ready := meta.FindStatusCondition(claim.Status.Conditions, v1alpha1.ConditionReady); ready != nil {
			fmt.Fprintf(&out, "  %s", strings.TrimSuffix(ready.Reason+": "+ready.Message, ": "))
		}

		out.WriteString("\n")
	}

	return out.String()
}

// errOthers says that there are objects that stand for what is not made anew.
var errOthers = errors.New("they stand for real hosts and clusters: remove them first")

// all removes everything, in order.
func (u *uninstaller) all(ctx context.Context, there *inventory) error {
	if len(there.others) > 0 {
		return fmt.Errorf("there are %s: %w", strings.Join(there.others, ", "), errOthers)
	}

	stages := append(draining(u),
		stage{"remove pools, templates, jobs and clusters", u.removeObjects},
		stage{"remove the operator", u.removeOperator},
	)
	if !u.keepCRDs {
		stages = append(stages, stage{"remove the kinds", u.removeKinds})
	}

	if err := u.each(ctx, stages); err != nil {
		return err
	}

	_, _ = fmt.Fprintf(u.out, "\nHyperFleet is removed. Namespace %s is left, for its Secrets: kubectl delete namespace %s\n",
		u.namespace, u.namespace)

	return nil
}

// stage is one of the things that are done in order.
type stage struct {
	title string
	do    func(context.Context) error
}

// draining are the stages that come before all others.
func draining(u *uninstaller) []stage {
	return []stage{{"pause the pools", u.pause}, {"drain the machines", u.drain}}
}

func (u *uninstaller) each(ctx context.Context, stages []stage) error {
	for _, stage := range stages {
		_, _ = fmt.Fprintln(u.out, stage.title)

		if err := stage.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", stage.title, err)
		}
	}

	return nil
}

// machinesAlone removes the machines, and nothing else.
func (u *uninstaller) machinesAlone(ctx context.Context) error {
	if err := u.each(ctx, draining(u)); err != nil {
		return err
	}

	_, _ = fmt.Fprintln(u.out, "\nAll machines are gone, and the pools are paused: set spec.paused to false to go on.")

	return nil
}

// pause has no pool make machines any more.
func (u *uninstaller) pause(ctx context.Context) error {
	var pools v1alpha1.RunnerPoolList
	if err := u.client.List(ctx, &pools); err != nil {
		return ignoreAbsent(err)
	}

	for i := range pools.Items {
		pool := &pools.Items[i]
		if pool.Spec.Paused {
			continue
		}

		before := pool.DeepCopy()
		pool.Spec.Paused = true

		err := u.client.Patch(ctx, pool, client.MergeFrom(before))
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("pause RunnerPool %s: %w", client.ObjectKeyFromObject(pool), err)
		}
	}

	return nil
}

// drain has the operator remove every machine, and waits until it has. A pool that was making
// machines when it was paused may have made one more: so claims are read again each time.
func (u *uninstaller) drain(ctx context.Context) error {
	told := ""

	return u.until(ctx, func() (string, error) {
		claims, err := u.claims(ctx)
		if err != nil {
			return "", err
		}

		for i := range claims {
			if claims[i].DeletionTimestamp.IsZero() {
				if err := client.IgnoreNotFound(u.client.Delete(ctx, &claims[i])); err != nil {
					return "", fmt.Errorf("delete MachineClaim %s: %w", client.ObjectKeyFromObject(&claims[i]), err)
				}
			}
		}

		left := machines(claims)
		if left != told && left != "" {
			_, _ = fmt.Fprintf(u.out, "left: %s\n%s", english.Plural(len(claims), "machine", ""), left)
		}

		told = left

		return left, nil
	})
}

// errLeft says that something did not go in time.
var errLeft = errors.New("the time is up: the operator is left running, so that it can remove what is left; see its log, " +
	"hyperfleet doctor and docs/guides/uninstall.md, and run this again")

// misses is how many looks may fail in a row: API servers restart, too.
const misses = 5

// until waits until nothing is left.
func (u *uninstaller) until(ctx context.Context, left func() (string, error)) error {
	ticker := u.clock.NewTicker(lookEvery)
	defer ticker.Stop()

	last, missed := "", 0

	for {
		now, err := left()

		switch {
		case err == nil && now == "":
			return nil
		case err == nil:
			last, missed = now, 0
		case ctx.Err() == nil:
			missed++
			if missed == misses {
				return err
			}
		}

		select {
		case <-ctx.Done():
			return fmt.Errorf("%w. What is left:\n%s", errLeft, last)
		case <-ticker.C():
		}
	}
}

// removeObjects deletes what machines were made from: what points at something goes before it.
func (u *uninstaller) removeObjects(ctx context.Context) error {
	for _, kind := range []string{
		"RunnerPool", "RunnerJobBatch", "RunnerJob", "RunnerLog", "HypervisorMachineTemplate", "HypervisorCluster",
	} {
		err := u.until(ctx, func() (string, error) { return u.removeKind(ctx, kind) })
		if err != nil {
			return err
		}
	}

	return nil
}

// removeKind asks for the deletion of all objects of a kind, and names those that are there.
func (u *uninstaller) removeKind(ctx context.Context, kind string) (string, error) {
	var list metav1.PartialObjectMetadataList

	list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))

	if err := u.client.List(ctx, &list); err != nil {
		return "", ignoreAbsent(err)
	}

	var left strings.Builder

	for i := range list.Items {
		obj := &list.Items[i]
		obj.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind)) // a list's items have none

		fmt.Fprintf(&left, "  %s %s\n", kind, strings.TrimPrefix(client.ObjectKeyFromObject(obj).String(), "/"))

		if obj.DeletionTimestamp.IsZero() {
			if err := client.IgnoreNotFound(u.client.Delete(ctx, obj)); err != nil {
				return "", fmt.Errorf("delete %s %s: %w", kind, obj.Name, err)
			}
		}
	}

	return left.String(), nil
}

// removeOperator deletes the Deployments, and then what they were allowed.
func (u *uninstaller) removeOperator(ctx context.Context) error {
	here := client.InNamespace(u.namespace)

	err := u.client.DeleteAllOf(ctx, &appsv1.Deployment{}, here, partOf)
	if err != nil {
		return fmt.Errorf("delete the operator's Deployments: %w", err)
	}

	for _, obj := range []client.Object{&rbacv1.RoleBinding{}, &rbacv1.Role{}} {
		if err := u.client.DeleteAllOf(ctx, obj, here, partOf); err != nil {
			return fmt.Errorf("delete the operator's roles: %w", err)
		}
	}

	for _, obj := range []client.Object{
		&rbacv1.ClusterRoleBinding{}, &admissionv1.ValidatingAdmissionPolicyBinding{}, &admissionv1.ValidatingAdmissionPolicy{},
	} {
		if err := u.client.DeleteAllOf(ctx, obj, partOf); err != nil {
			return fmt.Errorf("delete the operator's bindings and admission policies: %w", err)
		}
	}

	return u.removeRoles(ctx)
}

// removeRoles deletes the generated roles, which have no labels.
func (u *uninstaller) removeRoles(ctx context.Context) error {
	return fs.WalkDir(deploy.RBAC, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}

		text, err := fs.ReadFile(deploy.RBAC, path)
		if err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}

		for document := range strings.SplitSeq(string(text), "\n---\n") {
			var role rbacv1.ClusterRole
			if err := yaml.Unmarshal([]byte(document), &role); err != nil {
				return fmt.Errorf("read %s: %w", path, err)
			}

			if role.Kind != "ClusterRole" || role.Name == "" {
				continue
			}

			if err := client.IgnoreNotFound(u.client.Delete(ctx, &role)); err != nil {
				return fmt.Errorf("delete ClusterRole %s: %w", role.Name, err)
			}
		}

		return nil
	})
}

// removeKinds deletes the CustomResourceDefinitions. No object of theirs is left.
func (u *uninstaller) removeKinds(ctx context.Context) error {
	crds, err := definitions()
	if err != nil {
		return err
	}

	for i := range crds {
		if err := client.IgnoreNotFound(u.client.Delete(ctx, &crds[i])); err != nil {
			return fmt.Errorf("delete kind %s: %w", crds[i].Name, err)
		}
	}

	return nil
}

// ignoreAbsent takes a kind that the cluster does not have for one without objects.
func ignoreAbsent(err error) error {
	if meta.IsNoMatchError(err) {
		return nil
	}

	return client.IgnoreNotFound(err)
}
