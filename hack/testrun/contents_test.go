// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/hyperfleet/hyperfleet/kit/kubeproc"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// A restored control plane is as empty as a new one, even if objects in it could not be deleted. It has the operator's CRDs
// only if the lease asks for them, and its processes use no CPU while it is free.
func TestControlPlaneIsEmptied(t *testing.T) {
	t.Parallel()

	s := newServers(t.Context(), t.TempDir(), "../..", io.Discard, func(string, time.Duration) {})
	t.Cleanup(s.stop)

	for round, withOwnCRDs := range []bool{false, true, true, false, true} {
		p, err := s.acquire(false, withOwnCRDs)
		must.Do(t, err)
		must.Do(t, p.prepare(t.Context(), withOwnCRDs, "../../deploy/crds"))
		createLeftovers(t, p, withOwnCRDs)
		s.release(p)

		if p.isBusy {
			t.Fatalf("round %d: the plane could not be emptied", round)
		}

		for _, pid := range p.PIDs() {
			waitUntilStopped(t, pid)
		}
	}

	if got := s.planeCount(); got != 1 {
		t.Errorf("%d control planes were started, want the first to be reused", got)
	}
}

// waitUntilStopped waits until a process is stopped by a signal: state T in proc(5).
func waitUntilStopped(t *testing.T, pid int) {
	t.Helper()

	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		must.Do(t, err)

		_, state, _ := strings.Cut(string(data), ") ")
		if strings.HasPrefix(state, "T") {
			return
		}

		if time.Now().After(deadline) {
			t.Fatalf("a process of a free control plane still runs: %s", data)
		}
	}
}

// changeOwnCRDs checks that the API server serves the operator's kinds, or that it does not, and changes them.
func changeOwnCRDs(t *testing.T, custom dynamic.Interface, withOwnCRDs bool) {
	t.Helper()

	for _, resource := range []string{"runnerlogs", "runnerjobbatches"} {
		kind := custom.Resource(schema.GroupVersionResource{Group: "hyperfleet.io", Version: "v1alpha1", Resource: resource})

		list, err := kind.List(t.Context(), metav1.ListOptions{})
		if withOwnCRDs && (err != nil || len(list.Items) > 0) || !withOwnCRDs && !apierrors.IsNotFound(err) {
			t.Fatalf("%s: %v, %v, and the lease is with own CRDs: %t", resource, list, err, withOwnCRDs)
		}
	}

	if !withOwnCRDs {
		return
	}

	crds := custom.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	must.Do(t, crds.Delete(t.Context(), "runnerjobbatches.hyperfleet.io", metav1.DeleteOptions{}))

	left := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "hyperfleet.io/v1alpha1", "kind": "RunnerLog", "metadata": map[string]any{"name": "left", "namespace": "left"},
		"spec": map[string]any{"claim": "none"},
	}}
	logs := custom.Resource(schema.GroupVersionResource{Group: "hyperfleet.io", Version: "v1alpha1", Resource: "runnerlogs"})
	_, err := logs.Namespace("left").Create(t.Context(), left, metav1.CreateOptions{})
	must.Do(t, err)
}

// createLeftovers checks that the control plane is empty, and then creates objects.
func createLeftovers(t *testing.T, p *controlPlane, withOwnCRDs bool) {
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

	changeOwnCRDs(t, custom, withOwnCRDs)

	widgets := custom.Resource(schema.GroupVersionResource{Group: "test.hyperfleet.io", Version: "v1", Resource: "widgets"}).Namespace("left")

	list, err := widgets.List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) > 0 {
		t.Fatalf("widgets: %v, %v", list, err)
	}
}
