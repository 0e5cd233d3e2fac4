// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package upgrade_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/kubeproc"
	"github.com/hyperfleet/hyperfleet/test/fleet"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

// TestMachinesSurviveUpgrade checks that a release's machines continue during an upgrade: first of the CRDs, as
// docs/operate/upgrade.md says, then of the operator. None is lost, duplicated or recreated, and all jobs finish.
func TestMachinesSurviveUpgrade(t *testing.T) {
	t.Parallel()

	for _, release := range listReleases(t) {
		t.Run(filepath.Base(release), func(t *testing.T) {
			t.Parallel()

			env := startServer(t, writeCRDsWithCurrentStatus(t, filepath.Join(release, "crds")))
			w := newFixture(t, env, fleet.Model())
			w.Start()
			w.EventuallyReady(w.NewPool(0))
			w.queueJobs(2)
			w.bootGuests(2)
			w.waitForRunningJobs(2)

			// Two more machines are being created, and one job is queued while no operator runs.
			w.queueJobs(2)
			w.Eventually("machines being created", func() (bool, string) {
				vms, phases := w.listMachines()

				return phases[v1alpha1.MachineClaimProvisioning]+phases[v1alpha1.MachineClaimBootstrapping] >= 2 && len(vms) == 4, fmt.Sprint(phases)
			})
			w.Stop()

			before, _ := w.listMachines()

			env.Apply(t, currentCRDs)
			w.queueJobs(1)
			w.Start()
			w.EventuallyReady(w.NewPool(0))
			w.bootGuests(3)

			after, _ := w.listMachines()
			for claim, vm := range before {
				if now, there := after[claim]; there && now != vm {
					t.Errorf("claim %s had VM %s, and now has %s", claim, vm, now)
				}
			}

			w.endJobs()
			w.EventuallyJobsDone(5)
			w.EventuallyClean()

			if made := w.CountClones(); made != 5 {
				t.Errorf("%d machines were created for 5 jobs", made)
			}

			for _, job := range w.GitHub.State().Jobs {
				if job.Requeues > 0 {
					t.Errorf("job %d lost its runner", job.ID)
				}
			}
		})
	}
}

// writeCRDsWithCurrentStatus writes the CRDs of a release to a folder, with the statuses of the current CRDs: the
// current operator takes the place of the release's, and refuses CRDs without the fields of the status that it writes.
func writeCRDsWithCurrentStatus(t *testing.T, crds string) string {
	t.Helper()

	dir, current := t.TempDir(), readCRDs(t, currentCRDs)

	for name, crd := range readCRDs(t, crds) {
		for i := range crd.Spec.Versions {
			if status, ok := current[name].Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["status"]; ok {
				crd.Spec.Versions[i].Schema.OpenAPIV3Schema.Properties["status"] = status
			}
		}

		text, err := yaml.Marshal(crd)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name+".yaml"), text, 0o600)
		}

		if err != nil {
			t.Fatal(err)
		}
	}

	return dir
}

// TestObjectsStayValid checks that every object that a release has stored is unchanged after the upgrade of the
// CRDs, can be updated, and loses nothing when the current operator reads and writes it.
func TestObjectsStayValid(t *testing.T) {
	t.Parallel()

	for _, release := range listReleases(t) {
		t.Run(filepath.Base(release), func(t *testing.T) {
			t.Parallel()

			env := startServer(t, filepath.Join(release, "crds"))
			namespace := env.Namespace(t)

			objects, err := kubeproc.ReadObjects(filepath.Join(release, "objects.yaml"))
			if err != nil {
				t.Fatal(err)
			}

			kinds := map[string]int{}
			stored := make([]*unstructured.Unstructured, 0, len(objects))

			for _, object := range objects {
				kinds[object.GetKind()]++
				stored = append(stored, storeObject(t, env, namespace, object))
			}

			if len(kinds) < len(readCRDs(t, filepath.Join(release, "crds"))) || kinds["MachineClaim"] < 7 {
				t.Errorf("objects of some kinds or phases are missing: %v", kinds)
			}

			env.Apply(t, currentCRDs)

			for _, object := range stored {
				checkUpgraded(t, env, object)
			}
		})
	}
}

// TestStoredPoolsCanBePaused checks that a stored pool whose workload the current CRDs reject can still be paused,
// as a drain does.
func TestStoredPoolsCanBePaused(t *testing.T) {
	t.Parallel()

	for _, release := range listReleases(t) {
		t.Run(filepath.Base(release), func(t *testing.T) {
			t.Parallel()

			env := startServer(t, filepath.Join(release, "crds"))
			namespace := env.Namespace(t)

			pools := []*v1alpha1.RunnerPool{}

			for name, load := range map[string]v1alpha1.Workload{
				"gitlab": {Type: v1alpha1.WorkloadGitLabCI, Config: &v1alpha1.WorkloadConfig{
					GitLab: &v1alpha1.GitLabCIConfig{URL: "https://gitlab.example.com"},
				}},
				"generic": {Type: v1alpha1.WorkloadGeneric, Config: &v1alpha1.WorkloadConfig{
					Generic: &v1alpha1.GenericConfig{Source: "nightly", Labels: []string{"linux,gpu"}, Command: []string{"/usr/bin/make"}},
				}},
				"buildkite": {Type: v1alpha1.WorkloadBuildkite, Config: &v1alpha1.WorkloadConfig{
					Buildkite: &v1alpha1.BuildkiteConfig{Organization: "acme", Tags: []string{"queue=linux"}},
				}},
			} {
				pool := &v1alpha1.RunnerPool{
					ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
					Spec: v1alpha1.RunnerPoolSpec{
						TemplateRef: v1alpha1.LocalObjectReference{Name: "debian"}, Workload: load,
						Scaling: v1alpha1.Scaling{MaxReplicas: 2},
					},
				}
				env.Create(t, pool)

				pools = append(pools, pool)
			}

			env.Apply(t, currentCRDs)

			for _, pool := range pools {
				another := pool.DeepCopy()
				another.Name, another.ResourceVersion, another.UID = pool.Name+"-2", "", ""

				if err := env.Client.Create(t.Context(), another, client.DryRunAll); !apierrors.IsInvalid(err) {
					t.Errorf("create another pool %s: error %v, want Invalid", pool.Name, err)
				}

				pool.Spec.Paused = true
				if err := env.Client.Update(t.Context(), pool); err != nil {
					t.Errorf("pause pool %s: %v", pool.Name, err)
				}
			}
		})
	}
}

// storeObject creates an object with its status as the release's operator did, and returns the stored object.
func storeObject(t *testing.T, env *kube.Env, namespace string, object *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()

	// Objects with a namespace are created in the namespace of the test.
	if mapping, err := env.Client.RESTMapper().RESTMapping(object.GroupVersionKind().GroupKind()); err != nil {
		t.Fatal(err)
	} else if mapping.Scope.Name() == "namespace" {
		object.SetNamespace(namespace)
	}

	status, _, _ := unstructured.NestedMap(object.Object, "status")
	unstructured.RemoveNestedField(object.Object, "status")

	if err := env.Client.Create(t.Context(), object); err != nil {
		t.Fatalf("create %s %s: %v", object.GetKind(), object.GetName(), err)
	}

	if status != nil {
		object.Object["status"] = status
		if err := env.Client.Status().Update(t.Context(), object); err != nil {
			t.Fatalf("write status of %s %s: %v", object.GetKind(), object.GetName(), err)
		}

		if diff := cmp.Diff(status, object.Object["status"]); diff != "" {
			t.Errorf("%s %s differs from what its release stored:\n%s", object.GetKind(), object.GetName(), diff)
		}
	}

	return object
}

// checkUpgraded updates an object, directly and with the current Go types.
func checkUpgraded(t *testing.T, env *kube.Env, before *unstructured.Unstructured) {
	t.Helper()

	name := before.GetKind() + " " + before.GetName()
	now := &unstructured.Unstructured{}
	now.SetGroupVersionKind(before.GroupVersionKind())

	if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(before), now); err != nil {
		t.Fatalf("read %s: %v", name, err)
	}

	if diff := diffObjects(before, now); diff != "" {
		t.Errorf("%s after the upgrade (-before +after):\n%s", name, diff)
	}

	// Update it as a user, and as the current operator.
	now.SetAnnotations(map[string]string{"edited": "yes"})

	if err := env.Client.Update(t.Context(), now); err != nil {
		t.Errorf("write %s: %v", name, err)

		return
	}

	made, err := env.Scheme.New(before.GroupVersionKind())
	if err != nil {
		t.Fatal(err)
	}

	typed, ok := made.(client.Object)
	if !ok {
		t.Fatalf("%s is not a client.Object", name)
	}

	if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(before), typed); err != nil {
		t.Fatalf("read %s: %v", name, err)
	}

	if err := env.Client.Update(t.Context(), typed); err != nil {
		t.Errorf("write %s with the current type: %v", name, err)
	}

	if _, has := before.Object["status"]; has {
		if err := env.Client.Status().Update(t.Context(), typed); err != nil {
			t.Errorf("write status of %s with the current type: %v", name, err)
		}
	}

	if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(before), now); err != nil {
		t.Fatalf("read %s: %v", name, err)
	}

	if diff := diffObjects(before, now); diff != "" {
		t.Errorf("%s after an update with the current type (-before +after):\n%s", name, diff)
	}
}

// diffObjects returns the difference between two versions of an object. A default status that the current CRD adds
// is not a difference.
func diffObjects(before, now *unstructured.Unstructured) string {
	after := contentOf(now)
	if _, has := before.Object["status"]; !has {
		delete(after, "status")
	}

	return cmp.Diff(contentOf(before), after, cmp.Comparer(isEquivalent))
}

// contentOf returns an object's content without what the API server adds.
func contentOf(of *unstructured.Unstructured) map[string]any {
	out := maps.Clone(of.Object)
	delete(out, "metadata")
	out["labels"] = of.GetLabels()

	result, _ := removeZeros(out).(map[string]any)

	return result
}

// removeZeros removes values that are equal to their absence: false, 0 and "". A field with another default gets
// this default, and differs.
func removeZeros(of any) any {
	switch value := of.(type) {
	case map[string]any:
		out := map[string]any{}

		for name, field := range value {
			if kept := removeZeros(field); kept != nil {
				out[name] = kept
			}
		}

		return out
	case []any:
		out := make([]any, 0, len(value))
		for _, item := range value {
			out = append(out, removeZeros(item))
		}

		return out
	case bool, int64, string:
		if value == false || value == int64(0) || value == "" {
			return nil
		}
	}

	return of
}

// isEquivalent returns true if two texts are the same duration or quantity: 1h and 1h0m0s, or 1024Mi and 1Gi.
func isEquivalent(a, b string) bool {
	if a == b {
		return true
	}

	x, errX := time.ParseDuration(a)
	y, errY := time.ParseDuration(b)

	if errX == nil && errY == nil {
		return x == y
	}

	p, errP := resource.ParseQuantity(a)
	q, errQ := resource.ParseQuantity(b)

	return errP == nil && errQ == nil && p.Equal(q)
}
