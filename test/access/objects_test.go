// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package access_test

import (
	"fmt"
	"os"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

// readSample returns the text of a file of the samples.
func (l *adapterRun) readSample(file string) string {
	l.t.Helper()

	text, err := os.ReadFile(samples + file)
	l.must(err)

	return string(text)
}

// newRef returns a reference to an object.
func newRef(group, version, kind, namespace, name string) transport.Ref {
	return transport.Ref{GVK: schema.GroupVersionKind{Group: group, Version: version, Kind: kind}, Namespace: namespace, Name: name}
}

// getObject returns an object of the cluster, or nil.
func (l *adapterRun) getObject(r transport.Ref) *unstructured.Unstructured {
	l.t.Helper()

	out := &unstructured.Unstructured{}
	out.SetGroupVersionKind(r.GVK)

	err := env.Client.Get(l.t.Context(), kubeclient.ObjectKey{Namespace: r.Namespace, Name: r.Name}, out)
	if apierrors.IsNotFound(err) {
		return nil
	}

	l.must(err)

	return out
}

// checkField returns a message if a field of an object is not as wanted.
func (l *adapterRun) checkField(r transport.Ref, want string, path ...string) string {
	l.t.Helper()

	object := l.getObject(r)
	if object == nil {
		return r.String() + " does not exist"
	}

	if got := getField(object, path...); got != want {
		return fmt.Sprintf("%s: %v is %q, want %q", r, path, got, want)
	}

	return ""
}

// patchDirectly patches an object without the adapter.
func (l *adapterRun) patchDirectly(r transport.Ref, document string) {
	l.t.Helper()

	object := l.getObject(r)
	if object == nil {
		l.t.Fatalf("%s does not exist", r)
	}

	l.must(env.Client.Patch(l.t.Context(), object, kubeclient.RawPatch(types.MergePatchType, []byte(document))))
}

// createDirectly creates an object without the adapter.
func (l *adapterRun) createDirectly(object kubeclient.Object) {
	l.t.Helper()
	l.must(kubeclient.IgnoreAlreadyExists(env.Client.Create(l.t.Context(), object)))
}

// createNamespace creates a namespace.
func (l *adapterRun) createNamespace(name string) {
	l.t.Helper()
	l.createDirectly(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
}

// listJobs returns the jobs of a namespace, the oldest first.
func (l *adapterRun) listJobs(namespace string) []batchv1.Job {
	l.t.Helper()

	var list batchv1.JobList

	l.must(env.Client.List(l.t.Context(), &list, kubeclient.InNamespace(namespace)))
	slices.SortFunc(list.Items, func(a, b batchv1.Job) int { return strings.Compare(a.Name, b.Name) })

	return list.Items
}

// endJobs ends the jobs that have not ended yet.
func (l *adapterRun) endJobs(namespace string, fail bool) {
	l.t.Helper()

	for _, job := range l.listJobs(namespace) {
		if len(job.Status.Conditions) > 0 {
			continue
		}

		kube.EndJob(&job, fail)
		l.must(env.Client.Status().Update(l.t.Context(), &job))
	}
}
