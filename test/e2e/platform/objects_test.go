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

// runJobs ends jobs, which nothing runs here: well, but for the first job of clusters
// whose name begins with drift. It ends with the test.
func (w *world) runJobs() {
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

			time.Sleep(lookAt)
		}
	}()
}

// managed lists the objects of the kinds that the tasks make, by their resource's id.
func (w *world) managed() map[string][]unstructured.Unstructured {
	w.t.Helper()

	out := map[string][]unstructured.Unstructured{}

	for _, object := range w.objects() {
		if object.GetLabels()[adapter.LabelAdapter] != "" {
			id := object.GetLabels()[adapter.LabelResourceID]
			out[id] = append(out[id], object)
		}
	}

	return out
}

// objects lists all objects of the kinds that the tasks make.
func (w *world) objects() []unstructured.Unstructured {
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

// namespace is that of a cluster; nil if there is none.
func (w *world) namespace(cluster string) *corev1.Namespace {
	found := &corev1.Namespace{}
	if err := w.kube.Client.Get(w.t.Context(), types.NamespacedName{Name: "cluster-" + cluster}, found); err != nil {
		w.must(kubeclient.IgnoreNotFound(err))

		return nil
	}

	return found
}

func (w *world) patch(object kubeclient.Object, document string) {
	w.t.Helper()
	w.must(w.kube.Client.Patch(w.t.Context(), object, kubeclient.RawPatch(types.MergePatchType, []byte(document))))
}

// stranger is an object that isn't the platform's, whatever it looks like.
type stranger struct {
	object kubeclient.Object
	uid    types.UID
	labels map[string]string
}

// plant makes an object that has to be there, untouched, in the end.
func (w *world) plant(object kubeclient.Object) {
	w.t.Helper()

	labels := maps.Clone(object.GetLabels())
	w.must(w.kube.Client.Create(w.t.Context(), object))
	w.strangers = append(w.strangers, stranger{object: object, uid: object.GetUID(), labels: labels})
}

// untouched says which of the strangers isn't what it was.
func (w *world) untouched() string {
	w.t.Helper()

	for _, s := range w.strangers {
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

func named(namespace, name string, labels, annotations map[string]string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels, Annotations: annotations}
}
