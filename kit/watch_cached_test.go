// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kit_test

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/kit/watch"
)

// storeReader is a cache with ConfigMaps in one store.
type storeReader struct {
	client.Reader

	informer cache.Informer
}

func (s *storeReader) GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error) {
	return s.informer, nil
}

// ListCached returns the objects of a cache themselves, and no copies of them.
func TestListCachedCopiesNothing(t *testing.T) {
	t.Parallel()

	informer := toolscache.NewSharedIndexInformer(&toolscache.ListWatch{}, &corev1.ConfigMap{}, 0, toolscache.Indexers{})
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"}}

	if err := informer.GetStore().Add(object); err != nil {
		t.Fatal(err)
	}

	got, err := watch.ListCached[*corev1.ConfigMap](t.Context(), &storeReader{informer: informer}, &corev1.ConfigMapList{})
	if err != nil || len(got) != 1 || got[0] != object {
		t.Errorf("listed %v (%v), want the object of the store", got, err)
	}
}

// A reader without stores, such as a cache of several namespaces, lists the objects.
func TestListCachedWithoutStore(t *testing.T) {
	t.Parallel()

	for _, from := range []client.Reader{&pagedLister{names: newNames(2)}, &storeReader{Reader: &pagedLister{names: newNames(2)}}} {
		got, err := watch.ListCached[*corev1.ConfigMap](t.Context(), from, &corev1.ConfigMapList{})
		if err != nil || len(got) != 2 || got[1].Name != "1" {
			t.Errorf("listed %v (%v), want two objects", got, err)
		}
	}

	if _, err := watch.ListCached[*corev1.ConfigMap](t.Context(), &pagedLister{failsAt: 1}, &corev1.ConfigMapList{}); !errors.Is(err, errList) {
		t.Errorf("a failed list ended with %v", err)
	}
}
