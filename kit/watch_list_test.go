// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kit_test

import (
	"context"
	"errors"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/kit/watch"
)

var errList = errors.New("the server is gone")

// pagedLister lists ConfigMaps in pages as an API server does, with a continue token.
type pagedLister struct {
	client.Reader

	names []string
	// failsAt is the number of the call that fails, counted from 1. With 0, no call fails.
	failsAt int
	// pages has the number of items of each call, and selector is that of the last call.
	pages    []int
	selector client.ListOptions
}

func (s *pagedLister) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	applied := client.ListOptions{}
	applied.ApplyOptions(options)
	s.selector = applied

	if len(s.pages)+1 == s.failsAt {
		return errList
	}

	start, _ := strconv.Atoi(applied.Continue)

	end := len(s.names)
	if applied.Limit > 0 {
		end = min(end, start+int(applied.Limit))
	}

	maps, ok := list.(*corev1.ConfigMapList)
	if !ok {
		return errList
	}

	for _, name := range s.names[start:end] {
		maps.Items = append(maps.Items, corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name}})
	}

	if end < len(s.names) {
		maps.Continue = strconv.Itoa(end)
	}

	s.pages = append(s.pages, end-start)

	return nil
}

func newNames(count int) []string {
	out := make([]string, count)
	for i := range out {
		out[i] = strconv.Itoa(i)
	}

	return out
}

func TestAllPages(t *testing.T) {
	t.Parallel()

	from := &pagedLister{names: newNames(501)}

	got, err := watch.ListAll[*corev1.ConfigMap](t.Context(), from, &corev1.ConfigMapList{}, client.InNamespace("a"))
	if err != nil {
		t.Fatal(err)
	}

	var names []string
	for _, object := range got {
		names = append(names, object.Name)
	}

	if diff := cmp.Diff(from.names, names); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}

	if diff := cmp.Diff([]int{200, 200, 101}, from.pages); diff != "" || from.selector.Namespace != "a" {
		t.Errorf("pages (-want +got):\n%s\nnamespace %q of the last", diff, from.selector.Namespace)
	}
}

func TestIncompleteListIsAnError(t *testing.T) {
	t.Parallel()

	got, err := watch.ListAll[*corev1.ConfigMap](t.Context(), &pagedLister{names: newNames(201), failsAt: 2}, &corev1.ConfigMapList{})
	if !errors.Is(err, errList) || got != nil {
		t.Errorf("%d objects, error %v", len(got), err)
	}
}

func TestRequestsOfSelectedObjects(t *testing.T) {
	t.Parallel()

	cache := &pagedLister{names: newNames(3)}

	request := func(name string) reconcile.Request {
		return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "a", Name: name}}
	}

	got := watch.ListRequests(t.Context(), cache, &corev1.ConfigMapList{}, func(object *corev1.ConfigMap) bool {
		return object.Name != "1"
	})
	if diff := cmp.Diff([]reconcile.Request{request("0"), request("2")}, got); diff != "" {
		t.Errorf("some (-want +got):\n%s", diff)
	}

	got = watch.ListRequests[*corev1.ConfigMap](t.Context(), cache, &corev1.ConfigMapList{}, nil)
	if diff := cmp.Diff([]reconcile.Request{request("0"), request("1"), request("2")}, got); diff != "" {
		t.Errorf("all (-want +got):\n%s", diff)
	}

	if copies := cache.selector.UnsafeDisableDeepCopy; copies == nil || !*copies {
		t.Error("the cache copies all objects for a few requests")
	}
}
