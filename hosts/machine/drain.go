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

// findFleetOnDelete reads the fleet of a host that is being deleted. The fleet may be deleted
// before its hosts. In that case, s.fleet stays nil.
func (s *scope) findFleetOnDelete(ctx context.Context) error {
	if s.obj.GetDeletionTimestamp().IsZero() {
		return nil
	}

	name := client.ObjectKey{Namespace: s.obj.GetNamespace(), Name: s.Kind.FleetName(s.obj)}
	fleet := &v1alpha1.HostFleet{}

	err := s.Client.Get(ctx, name, fleet)
	if apierrors.IsNotFound(err) {
		return nil
	}

	if err != nil {
		return fmt.Errorf("get HostFleet %s: %w", name.Name, err)
	}

	if fleet.Spec.HostKind == s.Kind.Name() {
		s.fleet = fleet
	}

	return nil
}

// needsDrain returns true if the host's Node has to be drained before the host is released: the
// fleet has spec.drain and is not being deleted itself. If the fleet is being deleted, no host is
// left to take the work. A host that never had its first boot is not a Node.
func needsDrain(s *scope) bool {
	return s.fleet != nil && s.fleet.Spec.Drain != nil && s.fleet.DeletionTimestamp.IsZero() && s.status.Bootstrapped
}

// newDrainer returns the Drainer of the host's Node. The Node has the name of the host.
func (s *scope) newDrainer() drain.Drainer {
	return drain.Drainer{
		Node: s.obj.GetName(), Subject: "host", Timeout: s.fleet.Spec.Drain.Timeout.Duration,
		Status: &s.status.Drain, Connect: s.connectCluster, Clock: s.Clock,
		EmitWarning: func(reason, message string) {
			s.Recorder.Eventf(s.fleet, s.obj, corev1.EventTypeWarning, reason, "Drain", "%s", message)
		},
	}
}

// connectCluster connects to the cluster in which the host is a Node.
func (s *scope) connectCluster(ctx context.Context) (*drain.Cluster, error) {
	ref := s.fleet.Spec.Drain.KubeconfigSecretRef

	return drain.ConnectFromSecret(ctx, s.APIReader, client.ObjectKey{Namespace: s.obj.GetNamespace(), Name: ref.Name}, ref.Key)
}

// drainNode evicts the Pods from the host's Node, for at most the timeout of the fleet's
// spec.drain.
func drainNode(ctx context.Context, s *scope) step.Result { return s.newDrainer().Reconcile(ctx) }

// needsNodeDelete returns true if the host leaves behind a Node that nothing else deletes.
func needsNodeDelete(s *scope) bool { return needsDrain(s) && s.newDrainer().ShouldDeleteNode() }

// deleteNode deletes the Node of a released host.
func deleteNode(ctx context.Context, s *scope) step.Result {
	return s.newDrainer().DeleteNode(ctx, s.status.Conditions, v1alpha1.ConditionReleased)
}
