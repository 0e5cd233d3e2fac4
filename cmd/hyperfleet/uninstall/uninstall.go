// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package uninstall

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
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
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/jobs"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/cmd/internal/crds"
	"github.com/hyperfleet/hyperfleet/deploy"
	"github.com/hyperfleet/hyperfleet/kit/keep"
)

// partOfLabel selects the objects that deploy/base creates.
var partOfLabel = client.MatchingLabels{"app.kubernetes.io/part-of": "hyperfleet"} //nolint:gochecknoglobals // a constant

// uninstaller deletes one installation.
type uninstaller struct {
	client    client.Client
	namespace string
	out       io.Writer
	clock     clock.WithTicker
	keepCRDs  bool
	drainOnly bool
}

// inventory has the objects of an installation. It is the JSON output: fields may be added, but not removed or
// changed.
type inventory struct {
	claims []v1alpha1.MachineClaim
	// Machines are the machines of the MachineClaims.
	Machines []machine `json:"machines"`
	// Objects is the number of objects of the runners area by kind, without MachineClaims.
	Objects map[string]int `json:"objects"`
	// Blocking is the number of objects of other areas by kind. They represent hosts and clusters.
	Blocking map[string]int `json:"blocking"`
}

// machine is the machine of a MachineClaim.
type machine struct {
	Namespace string `json:"namespace"`
	jobs.VM
}

// takeInventory lists the objects of the installation. With --drain it lists only MachineClaims.
func (u *uninstaller) takeInventory(ctx context.Context) (*inventory, error) {
	out := &inventory{Machines: []machine{}, Objects: map[string]int{}, Blocking: map[string]int{}}

	var err error
	if out.claims, err = u.listClaims(ctx); err != nil {
		return nil, err
	}

	for i := range out.claims {
		out.Machines = append(out.Machines, machine{out.claims[i].Namespace, jobs.NewVM(&out.claims[i])})
	}

	if u.drainOnly {
		return out, nil
	}

	all, err := crds.Load()
	if err != nil {
		return nil, err
	}

	for _, crd := range all {
		n, err := u.countObjects(ctx, crd)
		if err != nil {
			return nil, err
		}

		kind := crd.Spec.Names.Kind

		switch {
		case n == 0 || kind == "MachineClaim":
		case crd.Spec.Group == v1alpha1.GroupVersion.Group && kind != "DNSRegistration":
			out.Objects[kind] = n
		default:
			out.Blocking[kind] = n
		}
	}

	return out, nil
}

// countObjects returns the number of objects of a CRD, and 0 if the CRD is not installed.
func (u *uninstaller) countObjects(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition) (int, error) {
	var list metav1.PartialObjectMetadataList

	list.SetGroupVersionKind(newObject(crd).GroupVersionKind())

	err := u.client.List(ctx, &list)
	if meta.IsNoMatchError(err) {
		return 0, nil
	}

	if client.IgnoreNotFound(err) != nil {
		return 0, fmt.Errorf("list %s: %w", crd.Spec.Names.Plural, err)
	}

	return len(list.Items), nil
}

// newObject returns an object of a CRD without a name.
func newObject(crd *apiextensionsv1.CustomResourceDefinition) *unstructured.Unstructured {
	out := &unstructured.Unstructured{}
	out.SetAPIVersion(crd.Spec.Group + "/" + crd.Spec.Versions[0].Name)
	out.SetKind(crd.Spec.Names.Kind)

	return out
}

func (u *uninstaller) listClaims(ctx context.Context) ([]v1alpha1.MachineClaim, error) {
	var claims v1alpha1.MachineClaimList

	err := u.client.List(ctx, &claims)
	if err != nil && !meta.IsNoMatchError(err) && client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("list MachineClaims: %w", err)
	}

	return claims.Items, nil
}

// formatInventory returns one line for each machine and for each kind of other objects.
func (u *uninstaller) formatInventory(i *inventory) string {
	if !u.drainOnly && len(i.claims)+len(i.Objects)+len(i.Blocking) == 0 {
		return "There are no objects of HyperFleet in this cluster. The operator, its roles and the CRDs may still be installed.\n"
	}

	var out strings.Builder

	fmt.Fprintf(&out, "%s\n%s", english.Plural(len(i.claims), "machine", ""), formatMachines(i.claims))

	for _, line := range formatCounts(i.Objects) {
		fmt.Fprintln(&out, line)
	}

	for _, line := range formatCounts(i.Blocking) {
		fmt.Fprintln(&out, line+", which you have to delete first")
	}

	return out.String()
}

// formatCounts returns the numbers of objects by kind, such as "3 of kind HostFleet", sorted by kind.
func formatCounts(counts map[string]int) []string {
	out := make([]string, 0, len(counts))
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		out = append(out, fmt.Sprintf("%d of kind %s", counts[kind], kind))
	}

	return out
}

// formatMachines returns one line for each claim, with the location of its machine, its phase, and its
// condition Ready.
func formatMachines(claims []v1alpha1.MachineClaim) string {
	var out strings.Builder

	for i := range claims {
		claim := &claims[i]
		line := fmt.Sprintf("  %s/%s", claim.Namespace, claim.Name)

		if vm := claim.Status.VMRef; vm != nil {
			line += fmt.Sprintf("  VM %s on node %s of HypervisorCluster %s", vm.VMID, vm.Node, vm.HypervisorCluster)
		}

		line += "  " + string(claim.Status.Phase)

		if ready := meta.FindStatusCondition(claim.Status.Conditions, v1alpha1.ConditionReady); ready != nil {
			line += "  " + strings.TrimSuffix(ready.Reason+": "+ready.Message, ": ")
		}

		out.WriteString(strings.ReplaceAll(cli.Sanitize(line), "\n", " ") + "\n")
	}

	return out.String()
}

// errOtherObjects reports that objects of other areas exist.
var errOtherObjects = errors.New("these objects represent real hosts and clusters: delete them first")

// uninstallAll deletes everything in order. It returns an error, and deletes nothing, if objects of other
// areas exist.
func (u *uninstaller) uninstallAll(ctx context.Context, existing *inventory) error {
	if len(existing.Blocking) > 0 {
		return fmt.Errorf("found %s: %w", strings.Join(formatCounts(existing.Blocking), ", "), errOtherObjects)
	}

	stages := append(drainStages(u),
		stage{"delete pools, templates, jobs and clusters", u.deleteObjects},
		stage{"delete the operator", u.deleteOperator},
		stage{"release the Secrets that the operator kept", func(ctx context.Context) error {
			return keep.RemoveFinalizers(ctx, u.client)
		}},
	)
	if !u.keepCRDs {
		stages = append(stages, stage{"delete the CRDs", u.deleteCRDs})
	}

	if err := u.runStages(ctx, stages); err != nil {
		return err
	}

	_, _ = fmt.Fprintf(u.out, "\nHyperFleet was deleted. Namespace %s still exists, because it contains your Secrets. "+
		"To delete it, run: kubectl delete namespace %s\n", u.namespace, u.namespace)

	return nil
}

// stage is one step of the uninstallation.
type stage struct {
	title string
	run   func(context.Context) error
}

// drainStages returns the first stages, which are also the stages of --drain.
func drainStages(u *uninstaller) []stage {
	return []stage{{"pause the pools", u.pausePools}, {"drain the machines", u.deleteClaims}}
}

func (u *uninstaller) runStages(ctx context.Context, stages []stage) error {
	for _, stage := range stages {
		_, _ = fmt.Fprintln(u.out, stage.title)

		if err := stage.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", stage.title, err)
		}
	}

	return nil
}

// drainMachines pauses the pools and deletes the machines, and nothing else.
func (u *uninstaller) drainMachines(ctx context.Context) error {
	if err := u.runStages(ctx, drainStages(u)); err != nil {
		return err
	}

	_, _ = fmt.Fprintln(u.out, "\nAll machines were deleted, and the pools are paused. "+
		"To resume a pool, set its spec.paused to false.")

	return nil
}

// pausePools pauses all pools, so that they create no more machines.
func (u *uninstaller) pausePools(ctx context.Context) error {
	var pools v1alpha1.RunnerPoolList
	if err := u.client.List(ctx, &pools); err != nil {
		return ignoreMissingCRDOrObject(err)
	}

	for i := range pools.Items {
		pool := &pools.Items[i]
		if pool.Spec.Paused {
			continue
		}

		base := pool.DeepCopy()
		pool.Spec.Paused = true

		err := u.client.Patch(ctx, pool, client.MergeFrom(base))
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("pause RunnerPool %s: %w", client.ObjectKeyFromObject(pool), err)
		}
	}

	return nil
}

// deleteClaims deletes all claims and waits until the operator has deleted their machines. It lists the
// claims again each time, because a pool that was reconciled when it was paused may have created another
// claim.
func (u *uninstaller) deleteClaims(ctx context.Context) error {
	printed := ""

	return u.waitUntilDeleted(ctx, func() (string, error) {
		claims, err := u.listClaims(ctx)
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

		remaining := formatMachines(claims)
		if remaining != printed && remaining != "" {
			_, _ = fmt.Fprintf(u.out, "remaining: %s\n%s", english.Plural(len(claims), "machine", ""), remaining)
		}

		printed = remaining

		return remaining, nil
	})
}

// errTimeout reports that objects still existed after the timeout.
var errTimeout = errors.New("timed out: the operator still runs, so that it can delete the remaining objects; " +
	"see its log, hyperfleet doctor and docs/guides/uninstall.md, and run this command again")

// maxFailures is the number of consecutive failures at which polling stops. A restart of the API server
// causes fewer.
const maxFailures = 5

// waitUntilDeleted polls until remaining returns "". remaining returns a description of the objects that
// still exist. waitUntilDeleted returns an error after maxFailures consecutive errors, or with the last
// description when ctx ends.
func (u *uninstaller) waitUntilDeleted(ctx context.Context, remaining func() (string, error)) error {
	ticker := u.clock.NewTicker(pollInterval)
	defer ticker.Stop()

	last, failures := "", 0

	for {
		objects, err := remaining()

		switch {
		case err == nil && objects == "":
			return nil
		case err == nil:
			last, failures = objects, 0
		case ctx.Err() == nil:
			failures++
			if failures == maxFailures {
				return err
			}
		}

		select {
		case <-ctx.Done():
			return fmt.Errorf("%w. Remaining objects:\n%s", errTimeout, last)
		case <-ticker.C():
		}
	}
}

// deleteObjects deletes the objects of the runners area, except claims. Objects that refer to other objects
// are deleted before these.
func (u *uninstaller) deleteObjects(ctx context.Context) error {
	for _, kind := range []string{
		"RunnerPool", "RunnerJobBatch", "RunnerJob", "RunnerLog", "HypervisorMachineTemplate", "HypervisorCluster",
	} {
		err := u.waitUntilDeleted(ctx, func() (string, error) { return u.deleteKind(ctx, kind) })
		if err != nil {
			return err
		}
	}

	return nil
}

// deleteKind requests the deletion of all objects of a kind. It returns one line for each object that it
// found, and "" if there are none left.
func (u *uninstaller) deleteKind(ctx context.Context, kind string) (string, error) {
	var list metav1.PartialObjectMetadataList

	list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))

	if err := u.client.List(ctx, &list); err != nil {
		return "", ignoreMissingCRDOrObject(err)
	}

	var remaining strings.Builder

	for i := range list.Items {
		obj := &list.Items[i]
		obj.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind)) // the items of a list have no kind

		fmt.Fprintf(&remaining, "  %s %s\n", kind, strings.TrimPrefix(client.ObjectKeyFromObject(obj).String(), "/"))

		if obj.DeletionTimestamp.IsZero() {
			if err := client.IgnoreNotFound(u.client.Delete(ctx, obj)); err != nil {
				return "", fmt.Errorf("delete %s %s: %w", kind, obj.Name, err)
			}
		}
	}

	return remaining.String(), nil
}

// deleteOperator deletes the Deployments, and then the RBAC objects and the admission policies.
func (u *uninstaller) deleteOperator(ctx context.Context) error {
	inNamespace := client.InNamespace(u.namespace)

	err := u.client.DeleteAllOf(ctx, &appsv1.Deployment{}, inNamespace, partOfLabel)
	if err != nil {
		return fmt.Errorf("delete the operator's Deployments: %w", err)
	}

	for _, obj := range []client.Object{&rbacv1.RoleBinding{}, &rbacv1.Role{}} {
		if err := u.client.DeleteAllOf(ctx, obj, inNamespace, partOfLabel); err != nil {
			return fmt.Errorf("delete the operator's roles: %w", err)
		}
	}

	for _, obj := range []client.Object{
		&rbacv1.ClusterRoleBinding{}, &admissionv1.ValidatingAdmissionPolicyBinding{}, &admissionv1.ValidatingAdmissionPolicy{},
	} {
		if err := u.client.DeleteAllOf(ctx, obj, partOfLabel); err != nil {
			return fmt.Errorf("delete the operator's bindings and admission policies: %w", err)
		}
	}

	if err := u.deleteShardBindings(ctx); err != nil {
		return err
	}

	for _, roles := range []fs.FS{deploy.RBAC, deploy.Shards} {
		if err := u.deleteRoles(ctx, roles); err != nil {
			return err
		}
	}

	return nil
}

// deleteShardBindings deletes the RoleBindings of operators that divide the namespaces, which are in the namespaces that
// they served and in the namespace default. Otherwise, a later installation would have these permissions again.
func (u *uninstaller) deleteShardBindings(ctx context.Context) error {
	bindings := &rbacv1.RoleBindingList{}
	if err := u.client.List(ctx, bindings, partOfLabel); err != nil {
		return fmt.Errorf("list the operators' RoleBindings: %w", err)
	}

	for i := range bindings.Items {
		binding := &bindings.Items[i]
		if !strings.HasPrefix(binding.RoleRef.Name, "hyperfleet-shard-") {
			continue
		}

		if err := client.IgnoreNotFound(u.client.Delete(ctx, binding)); err != nil {
			return fmt.Errorf("delete RoleBinding %s: %w", client.ObjectKeyFromObject(binding), err)
		}
	}

	return nil
}

// deleteRoles deletes the ClusterRoles of the manifests by their names, because the generated ones have no labels.
func (u *uninstaller) deleteRoles(ctx context.Context, roles fs.FS) error {
	return fs.WalkDir(roles, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}

		text, err := fs.ReadFile(roles, path)
		if err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}

		for document := range strings.SplitSeq(string(text), "\n---\n") {
			var role rbacv1.ClusterRole
			if err := yaml.Unmarshal([]byte(document), &role); err != nil {
				return fmt.Errorf("parse %s: %w", path, err)
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

// deleteCRDs deletes the CRDs. The caller has to make sure that their objects no longer exist.
func (u *uninstaller) deleteCRDs(ctx context.Context) error {
	all, err := crds.Load()
	if err != nil {
		return err
	}

	for _, crd := range all {
		if err := client.IgnoreNotFound(u.client.Delete(ctx, crd)); err != nil {
			return fmt.Errorf("delete CRD %s: %w", crd.Name, err)
		}
	}

	return nil
}

// ignoreMissingCRDOrObject returns nil if the error means that the CRD is not installed or the object does not exist.
func ignoreMissingCRDOrObject(err error) error {
	if meta.IsNoMatchError(err) {
		return nil
	}

	return client.IgnoreNotFound(err)
}
