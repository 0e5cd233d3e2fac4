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

func (l *life) read(file string) string {
	l.t.Helper()

	text, err := os.ReadFile(samples + file)
	l.must(err)

	return string(text)
}

func ref(group, version, kind, namespace, name string) transport.Ref {
	return transport.Ref{GVK: schema.GroupVersionKind{Group: group, Version: version, Kind: kind}, Namespace: namespace, Name: name}
}

// object is what the cluster has; nil if nothing.
func (l *life) object(r transport.Ref) *unstructured.Unstructured {
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

// is says what is wrong with a field of an object.
func (l *life) is(r transport.Ref, want string, path ...string) string {
	l.t.Helper()

	object := l.object(r)
	if object == nil {
		return r.String() + " is not there"
	}

	if got := field(object, path...); got != want {
		return fmt.Sprintf("%s: %v is %q, want %q", r, path, got, want)
	}

	return ""
}

// patch changes an object as a person does.
func (l *life) patch(r transport.Ref, document string) {
	l.t.Helper()

	object := l.object(r)
	if object == nil {
		l.t.Fatalf("%s is not there", r)
	}

	l.must(env.Client.Patch(l.t.Context(), object, kubeclient.RawPatch(types.MergePatchType, []byte(document))))
}

// make makes an object as somebody else does.
func (l *life) make(object kubeclient.Object) {
	l.t.Helper()
	l.must(kubeclient.IgnoreAlreadyExists(env.Client.Create(l.t.Context(), object)))
}

func (l *life) namespace(name string) {
	l.t.Helper()
	l.make(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
}

// jobs are those of a namespace, the oldest first.
func (l *life) jobs(namespace string) []batchv1.Job {
	l.t.Helper()

	var list batchv1.JobList

	l.must(env.Client.List(l.t.Context(), &list, kubeclient.InNamespace(namespace)))
	slices.SortFunc(list.Items, func(a, b batchv1.Job) int { return strings.Compare(a.Name, b.Name) })

	return list.Items
}

// end ends the jobs that have not ended.
func (l *life) end(namespace string, fail bool) {
	l.t.Helper()

	for _, job := range l.jobs(namespace) {
		if len(job.Status.Conditions) > 0 {
			continue
		}

		kube.EndJob(&job, fail)
		l.must(env.Client.Status().Update(l.t.Context(), &job))
	}
}
