// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/hyperfleet/hyperfleet/kit/kubeproc"
)

// A restored control plane is as empty as a new one, even if objects in it could not be deleted.
func TestControlPlaneIsEmptied(t *testing.T) {
	t.Parallel()

	s := newServers(t.Context(), t.TempDir(), io.Discard, func(string, time.Duration) {})
	t.Cleanup(s.stop)

	for round := range 3 {
		p, err := s.acquire(false)
		if err != nil {
			t.Fatal(err)
		}

		createLeftovers(t, p)
		s.release(p)

		if p.isBusy {
			t.Fatalf("round %d: the plane could not be emptied", round)
		}
	}

	if got := s.planeCount(); got != 1 {
		t.Errorf("%d control planes were started, want the first to be reused", got)
	}
}

// createLeftovers checks that the control plane is empty, and then creates objects.
func createLeftovers(t *testing.T, p *controlPlane) {
	t.Helper()

	config, err := p.AdminConfig()
	if err != nil {
		t.Fatal(err)
	}

	typed, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}

	ctx, finalizers := t.Context(), []string{"test.hyperfleet.io/never"}

	if _, err := typed.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "left"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	held := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "held", Finalizers: finalizers}}
	if _, err := typed.CoreV1().ConfigMaps("left").Create(ctx, held, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	events, err := typed.CoreV1().Events(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}

	// The API server may create events about itself at any time.
	if i := slices.IndexFunc(events.Items, func(e corev1.Event) bool { return e.Namespace != metav1.NamespaceDefault }); i >= 0 {
		t.Fatalf("an event remains: %v", events.Items[i])
	}

	event := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "event"}, InvolvedObject: corev1.ObjectReference{Namespace: "left", Name: "held"},
	}
	if _, err := typed.CoreV1().Events("left").Create(ctx, event, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	// Change and delete an object of the API server itself.
	if err := typed.RbacV1().ClusterRoles().Delete(ctx, "view", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}

	role, err := typed.RbacV1().ClusterRoles().Get(ctx, "edit", metav1.GetOptions{})
	if err != nil || role.Labels["left"] != "" {
		t.Fatalf("the role has labels %v, %v", role.Labels, err)
	}

	role.Labels["left"] = "behind"
	if _, err := typed.RbacV1().ClusterRoles().Update(ctx, role, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}

	if err := kubeproc.Apply(ctx, config, "../../test/kube/testdata"); err != nil {
		t.Fatal(err)
	}

	custom, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}

	widgets := custom.Resource(schema.GroupVersionResource{Group: "test.hyperfleet.io", Version: "v1", Resource: "widgets"}).Namespace("left")

	list, err := widgets.List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) > 0 {
		t.Fatalf("widgets: %v, %v", list, err)
	}
}
