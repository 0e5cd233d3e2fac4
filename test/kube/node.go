// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// CreateNode creates a Node that is Ready, and deletes it when the test ends.
func (e *Env) CreateNode(t testing.TB, name string, labels map[string]string) {
	t.Helper()

	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	e.Create(t, node)

	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	failOnError(t, e.Client.Status().Update(t.Context(), node))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()

		failOnError(t, client.IgnoreNotFound(e.Client.Delete(ctx, node)))
	})
}

// GetNode returns a Node, nil if it does not exist.
func (e *Env) GetNode(t testing.TB, name string) *corev1.Node {
	t.Helper()

	node := &corev1.Node{}

	err := e.Client.Get(t.Context(), client.ObjectKey{Name: name}, node)
	if apierrors.IsNotFound(err) {
		return nil
	}

	failOnError(t, err)

	return node
}

// CreatePod creates a pod that runs on a Node. Its label app has the pod's name. The function change, which
// may be nil, edits the pod before it is created. The pod has no grace period, so an eviction deletes it at
// once.
func (e *Env) CreatePod(t testing.TB, namespace, node, name string, change func(*corev1.Pod)) {
	t.Helper()

	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{
			NodeName: node, TerminationGracePeriodSeconds: new(int64(0)),
			Containers: []corev1.Container{{Name: "c", Image: "registry.example.com/a:1"}},
		},
	}
	if change != nil {
		change(pod)
	}

	e.Create(t, pod)

	// A PodDisruptionBudget protects only pods that run and are ready.
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	failOnError(t, e.Client.Status().Update(t.Context(), pod))
}

// NotReconciled is a number of allowed disruptions for SetBudget: the budget has no status, as if no
// controller had reconciled it yet.
const NotReconciled = -1

// SetBudget creates the PodDisruptionBudget of an app if it does not exist, and sets the number of allowed
// disruptions in its status.
func (e *Env) SetBudget(t testing.TB, namespace, app string, allowed int32) {
	t.Helper()

	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: app}}

	err := e.Client.Get(t.Context(), client.ObjectKeyFromObject(budget), budget)
	if apierrors.IsNotFound(err) {
		budget.Spec = policyv1.PodDisruptionBudgetSpec{
			MinAvailable: new(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
		}
		err = e.Client.Create(t.Context(), budget)
	}

	failOnError(t, err)

	if allowed == NotReconciled {
		return
	}

	before := budget.DeepCopy()
	budget.Status = policyv1.PodDisruptionBudgetStatus{
		ObservedGeneration: budget.Generation, DisruptionsAllowed: allowed,
		CurrentHealthy: 1 + allowed, DesiredHealthy: 1, ExpectedPods: 1,
	}
	// Patch the status, because an eviction may update it at the same time.
	failOnError(t, e.Client.Status().Patch(t.Context(), budget, client.MergeFrom(before)))
}

func failOnError(t testing.TB, err error) {
	t.Helper()

	if err != nil {
		t.Fatal(err)
	}
}
