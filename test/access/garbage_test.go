// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package access_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestGarbageIsCollected checks that a control plane with the controller manager collects garbage.
func TestGarbageIsCollected(t *testing.T) {
	t.Parallel()

	namespace := env.Namespace(t)
	owner := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "owner"}}
	env.Create(t, owner)

	child := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: "child",
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID}},
	}}
	env.Create(t, child)

	if err := env.Client.Delete(t.Context(), owner); err != nil {
		t.Fatal(err)
	}

	for deadline := time.Now().Add(waitTimeout); ; time.Sleep(pollInterval) {
		err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(child), child)
		if apierrors.IsNotFound(err) {
			return
		}

		if time.Now().After(deadline) {
			t.Fatalf("the child still exists: %v", err)
		}
	}
}
