// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/drain"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// drains says whether the machine's Node is drained before the machine goes: its pool says how,
// and stays. Where the pool goes as well nobody is left to take the work. A machine that has
// never run is no Node.
func drains(s *scope) bool {
	return s.pool != nil && s.pool.Spec.Drain != nil && s.pool.DeletionTimestamp.IsZero() && s.machine.Status.NodeName != ""
}

// lookForPool reads the pool of a machine that is being deleted.
func (s *scope) lookForPool(ctx context.Context) error {
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

// order is the drain of the machine's Node.
func (s *scope) order() drain.Order {
	return drain.Order{
		Node: s.machine.Name, Thing: "machine", Limit: s.pool.Spec.Drain.Timeout.Duration,
		Record: &s.machine.Status.Drain, Open: s.cluster, Clock: s.Clock,
		Warn: func(reason, message string) {
			s.Recorder.Eventf(s.pool, s.machine, corev1.EventTypeWarning, reason, "Drain", "%s", message)
		},
	}
}

// drained takes the work off the machine's Node, for as long as the pool allows.
func drained(ctx context.Context, s *scope) step.Result {
	if record := s.machine.Status.Drain; record == nil || record.EndedAt == nil {
		s.machine.Status.Phase, s.machine.Status.Ready = v1alpha1.KubevirtMachineDraining, false
	}

	return s.order().Pass(ctx)
}

// cluster is the one that the machine is a Node of.
func (s *scope) cluster(ctx context.Context) (*drain.Cluster, error) {
	ref := s.pool.Spec.Drain.KubeconfigSecretRef

	return drain.OpenSecret(ctx, s.Live, client.ObjectKey{Namespace: s.machine.Namespace, Name: ref.Name}, ref.Key)
}

// leavesNode says whether a Node is left of the machine that nobody else removes.
func leavesNode(s *scope) bool { return drains(s) && s.order().LeavesNode() }

// nodeGone deletes the Node of the machine that is gone.
func nodeGone(ctx context.Context, s *scope) step.Result {
	return s.order().Forget(ctx, s.machine.Status.Conditions, v1alpha1.ConditionVMDeleted)
}
