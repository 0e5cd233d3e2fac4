// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/drain"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// shouldDrain returns whether the machine's Node is drained before the machine is deleted. This is the case
// if the node pool has spec.drain and is not being deleted. If the pool is being deleted too, no machine of
// the pool is left to take the workload. A machine that has never run has no Node.
func shouldDrain(s *scope) bool {
	return s.pool != nil && s.pool.Spec.Drain != nil && s.pool.DeletionTimestamp.IsZero() && s.nodeName() != ""
}

// nodeName returns the node on which the machine runs or ran last. If the status was lost, it is read back from
// the instance of the VirtualMachine.
func (s *scope) nodeName() string {
	if s.machine.Status.NodeName != "" || s.instance == nil {
		return s.machine.Status.NodeName
	}

	node, _, _ := unstructured.NestedString(s.instance.Object, "status", "nodeName")

	return node
}

// loadPool reads the node pool of a machine that is being deleted.
func (s *scope) loadPool(ctx context.Context) error {
	name := s.machine.Labels[v1alpha1.LabelNodePool]
	if s.machine.DeletionTimestamp.IsZero() || name == "" {
		return nil
	}

	pool := &v1alpha1.KubevirtNodePool{}

	err := s.Client.Get(ctx, client.ObjectKey{Namespace: s.machine.Namespace, Name: name}, pool)
	if apierrors.IsNotFound(err) {
		return nil
	}

	if err != nil {
		return fmt.Errorf("get node pool: %w", err)
	}

	s.pool = pool

	return nil
}

// newDrainer returns the Drainer of the machine's Node.
func (s *scope) newDrainer() drain.Drainer {
	return drain.Drainer{
		Node: s.machine.Name, Subject: "machine", Timeout: s.pool.Spec.Drain.Timeout.Duration,
		Status: &s.machine.Status.Drain, Connect: s.connectCluster, Clock: s.Clock,
		EmitWarning: func(reason, message string) {
			s.Recorder.Eventf(s.pool, s.machine, corev1.EventTypeWarning, reason, "Drain", "%s", message)
		},
	}
}

// drainNode drains the machine's Node, until the drain timeout of the pool ends.
func drainNode(ctx context.Context, s *scope) step.Result {
	s.machine.Status.NodeName = s.nodeName() // the instance is gone when the Node is deleted

	if record := s.machine.Status.Drain; record == nil || record.EndedAt == nil {
		s.machine.Status.Phase, s.machine.Status.Ready = v1alpha1.KubevirtMachineDraining, false
	}

	return s.newDrainer().Reconcile(ctx)
}

// connectCluster connects to the cluster in which the machine is a Node.
func (s *scope) connectCluster(ctx context.Context) (*drain.Cluster, error) {
	ref := s.pool.Spec.Drain.KubeconfigSecretRef

	return drain.ConnectFromSecret(ctx, s.APIReader, client.ObjectKey{Namespace: s.machine.Namespace, Name: ref.Name}, ref.Key)
}

// shouldDeleteNode returns whether the drain found the machine's Node. The reconciler must delete this
// Node, because the cluster has no cloud controller that does.
func shouldDeleteNode(s *scope) bool { return shouldDrain(s) && s.newDrainer().ShouldDeleteNode() }

// deleteNode deletes the Node of the machine after its VirtualMachine is deleted. If this fails, the
// deletion of the machine continues after one minute without it.
func deleteNode(ctx context.Context, s *scope) step.Result {
	return s.newDrainer().DeleteNode(ctx, s.machine.Status.Conditions, v1alpha1.ConditionVMDeleted)
}
