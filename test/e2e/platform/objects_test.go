// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package platform_test

import (
	"context"
	"maps"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

// finishJobs marks Jobs as complete until the end of the test, because nothing runs them here. It marks the
// first Job of a cluster whose name begins with drift as failed.
func (w *fixture) finishJobs() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})

	w.t.Cleanup(func() {
		cancel()
		<-ended
	})

	go func() {
		defer close(ended)

		failed := map[string]bool{}

		for ctx.Err() == nil {
			jobs := &batchv1.JobList{}
			_ = w.kube.Client.List(ctx, jobs)

			for i := range jobs.Items {
				if job := &jobs.Items[i]; len(job.Status.Conditions) == 0 && job.DeletionTimestamp == nil {
					fail := strings.HasPrefix(job.Namespace, "cluster-drift") && !failed[job.Namespace]
					failed[job.Namespace] = true

					kube.EndJob(job, fail)

					_ = w.kube.Client.Status().Update(ctx, job)
				}
			}

			time.Sleep(pollInterval)
		}
	}()
}

// listManagedObjects returns the objects with an adapter label, by the ID of their resource.
func (w *fixture) listManagedObjects() map[string][]unstructured.Unstructured {
	w.t.Helper()

	out := map[string][]unstructured.Unstructured{}

	for _, object := range w.listObjects() {
		if object.GetLabels()[adapter.LabelAdapter] != "" {
			id := object.GetLabels()[adapter.LabelResourceID]
			out[id] = append(out[id], object)
		}
	}

	return out
}

// listObjects returns all objects of the kinds that the task files create.
func (w *fixture) listObjects() []unstructured.Unstructured {
	w.t.Helper()

	var out []unstructured.Unstructured

	for version, kinds := range map[string][]string{
		"v1": {"Namespace", "ResourceQuota", "ConfigMap", "Secret"}, "batch/v1": {"Job"},
		"work.open-cluster-management.io/v1": {"ManifestWork"},
	} {
		for _, kind := range kinds {
			list := &unstructured.UnstructuredList{}
			list.SetAPIVersion(version)
			list.SetKind(kind + "List")
			w.must(w.kube.Client.List(w.t.Context(), list))

			out = append(out, list.Items...)
		}
	}

	return out
}

// getNamespace returns the namespace of a cluster, or nil if there is none.
func (w *fixture) getNamespace(cluster string) *corev1.Namespace {
	found := &corev1.Namespace{}
	if err := w.kube.Client.Get(w.t.Context(), types.NamespacedName{Name: "cluster-" + cluster}, found); err != nil {
		w.must(kubeclient.IgnoreNotFound(err))

		return nil
	}

	return found
}

func (w *fixture) mergePatch(object kubeclient.Object, document string) {
	w.t.Helper()
	w.must(w.kube.Client.Patch(w.t.Context(), object, kubeclient.RawPatch(types.MergePatchType, []byte(document))))
}

// foreignObject is an object that the platform must not change, even if its labels look like the
// platform's.
type foreignObject struct {
	object kubeclient.Object
	uid    types.UID
	labels map[string]string
}

// createForeignObject creates an object that must exist unchanged at the end of the test.
func (w *fixture) createForeignObject(object kubeclient.Object) {
	w.t.Helper()

	labels := maps.Clone(object.GetLabels())
	w.must(w.kube.Client.Create(w.t.Context(), object))
	w.foreignObjects = append(w.foreignObjects, foreignObject{object: object, uid: object.GetUID(), labels: labels})
}

// findTouchedObject returns a description of a foreign object that was changed, or an empty string.
func (w *fixture) findTouchedObject() string {
	w.t.Helper()

	for _, s := range w.foreignObjects {
		name := s.object.GetNamespace() + "/" + s.object.GetName()

		if err := w.kube.Client.Get(w.t.Context(), kubeclient.ObjectKeyFromObject(s.object), s.object); err != nil {
			return name + ": " + err.Error()
		}

		if s.object.GetUID() != s.uid || s.object.GetDeletionTimestamp() != nil {
			return name + " was deleted"
		}

		for key, value := range s.labels {
			if s.object.GetLabels()[key] != value {
				return name + " has lost its label " + key
			}
		}
	}

	return ""
}

func newObjectMeta(namespace, name string, labels, annotations map[string]string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels, Annotations: annotations}
}
