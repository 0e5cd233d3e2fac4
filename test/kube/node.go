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

// Joins makes a Node that is ready, until the test ends.
func (e *Env) Joins(t testing.TB, name string, labels map[string]string) {
	t.Helper()

	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	e.Create(t, node)

	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	must(t, e.Client.Status().Update(t.Context(), node))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()

		must(t, client.IgnoreNotFound(e.Client.Delete(ctx, node)))
	})
}

// Node gives a Node; nil if there is none.
func (e *Env) Node(t testing.TB, name string) *corev1.Node {
	t.Helper()

	node := &corev1.Node{}

	err := e.Client.Get(t.Context(), client.ObjectKey{Name: name}, node)
	if apierrors.IsNotFound(err) {
		return nil
	}

	must(t, err)

	return node
}

// Pod makes a pod that runs on a Node, with its name as its label app; change may be nil. It ends
// at once when it is evicted.
func (e *Env) Pod(t testing.TB, namespace, node, name string, change func(*corev1.Pod)) {
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

	// No budget keeps a pod that does not run.
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	must(t, e.Client.Status().Update(t.Context(), pod))
}

// Unseen is for a budget that no controller has looked at.
const Unseen = -1

// Budget keeps the pods of an app, or lets so many of them go.
func (e *Env) Budget(t testing.TB, namespace, app string, allowed int32) {
	t.Helper()

	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: app}}

	err := e.Client.Get(t.Context(), client.ObjectKeyFromObject(budget), budget)
	if apierrors.IsNotFound(err) {
		budget.Spec = policyv1.PodDisruptionBudgetSpec{
			MinAvailable: new(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
		}
		err = e.Client.Create(t.Context(), budget)
	}

	must(t, err)

	if allowed == Unseen {
		return
	}

	before := budget.DeepCopy()
	budget.Status = policyv1.PodDisruptionBudgetStatus{
		ObservedGeneration: budget.Generation, DisruptionsAllowed: allowed,
		CurrentHealthy: 1 + allowed, DesiredHealthy: 1, ExpectedPods: 1,
	}
	// An eviction may write it at the same moment.
	must(t, e.Client.Status().Patch(t.Context(), budget, client.MergeFrom(before)))
}

func must(t testing.TB, err error) {
	t.Helper()

	if err != nil {
		t.Fatal(err)
	}
}
