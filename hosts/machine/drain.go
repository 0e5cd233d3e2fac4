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

// lookForFleet reads the fleet of a host that is being deleted. It may be gone before its hosts.
func (s *scope) lookForFleet(ctx context.Context) error {
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
		return fmt.Errorf("get fleet %s: %w", name.Name, err)
	}

	if fleet.Spec.HostKind == s.Kind.Name() {
		s.fleet = fleet
	}

	return nil
}

// drains says whether the host's Node is drained before the host goes: its fleet says how, and
// stays. Where the fleet goes as well nobody is left to take the work. A host that has never been
// booted is no Node.
func drains(s *scope) bool {
	return s.fleet != nil && s.fleet.Spec.Drain != nil && s.fleet.DeletionTimestamp.IsZero() && s.status.Bootstrapped
}

// order is the drain of the host's Node, which has its name.
func (s *scope) order() drain.Order {
	return drain.Order{
		Node: s.obj.GetName(), Thing: "host", Limit: s.fleet.Spec.Drain.Timeout.Duration,
		Record: &s.status.Drain, Open: s.cluster, Clock: s.Clock,
		Warn: func(reason, message string) {
			s.Recorder.Eventf(s.fleet, s.obj, corev1.EventTypeWarning, reason, "Drain", "%s", message)
		},
	}
}

// cluster is the one that the host is a Node of.
func (s *scope) cluster(ctx context.Context) (*drain.Cluster, error) {
	ref := s.fleet.Spec.Drain.KubeconfigSecretRef

	return drain.OpenSecret(ctx, s.Live, client.ObjectKey{Namespace: s.obj.GetNamespace(), Name: ref.Name}, ref.Key)
}

// drained takes the work off the host's Node, for as long as the fleet allows.
func drained(ctx context.Context, s *scope) step.Result { return s.order().Pass(ctx) }

// leavesNode says whether a Node is left of the host that nobody else removes.
func leavesNode(s *scope) bool { return drains(s) && s.order().LeavesNode() }

// nodeGone deletes the Node of the host that was given back.
func nodeGone(ctx context.Context, s *scope) step.Result {
	return s.order().Forget(ctx, s.status.Conditions, v1alpha1.ConditionReleased)
}
