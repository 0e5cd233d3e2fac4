// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypervisorcluster

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/connect"
)

// retryAfter is how soon a cluster that does not answer is tried again. The queue's own
// back-off would grow to minutes; a hypervisor that is back should be used at once.
const retryAfter = 10 * time.Second

// credentials reads the Secrets and makes the connection.
func credentials(ctx context.Context, s *scope) step.Result {
	provider, err := s.Clusters.Ensure(ctx, s.cluster)

	switch {
	case err == nil:
		s.provider = provider

		return step.Done().Also("InsecureTLS", insecure(s.cluster), "AsConfigured", "spec.tls.insecureSkipVerify")
	case errclass.Of(err) == errclass.Transient:
		return step.Wait(retryAfter, errclass.Reason(err, "SecretUnavailable"), err.Error())
	default:
		return step.Stall(errclass.Reason(err, "CredentialsInvalid"), err.Error())
	}
}

func insecure(cluster *v1alpha1.HypervisorCluster) metav1.ConditionStatus {
	if cluster.Spec.TLS != nil && cluster.Spec.TLS.InsecureSkipVerify {
		return metav1.ConditionTrue
	}

	return metav1.ConditionFalse
}

// connected reaches the hypervisor with the credentials and checks the privileges.
func connected(ctx context.Context, s *scope) step.Result {
	info, err := s.provider.Check(ctx)
	if err != nil {
		s.cluster.Status.ConnectedNodes = 0

		return connect.Outcome(err, retryAfter, "Unavailable")
	}

	status := &s.cluster.Status
	status.Version = info.Version
	status.ConnectedNodes = 0

	for _, node := range info.Nodes {
		if node.Online {
			status.ConnectedNodes++
		}
	}

	if status.ConnectedNodes == 0 && !info.NodesHidden {
		return step.Wait(retryAfter, "NoNodeOnline", "none of the cluster's usable nodes is online")
	}

	message := fmt.Sprintf("%s, %s online",
		strings.TrimSpace(info.Product+" "+info.Version), english.Plural(int(status.ConnectedNodes), "node", ""))
	if len(info.Warnings) > 0 {
		message += "; " + strings.Join(info.Warnings, "; ")
	}

	return step.Done().WithReason("Connected", message)
}

// inspected reports what the nodes have to give.
func inspected(ctx context.Context, s *scope) step.Result {
	capacity, err := s.provider.Capacity(ctx)
	if err != nil {
		return connect.Outcome(err, retryAfter, "CapacityUnknown")
	}

	status := &s.cluster.Status
	status.AvailableResources = amounts(capacity.Free)
	status.Nodes = s.nodes(capacity.Nodes)
	status.Machines = int32(capacity.Machines) //nolint:gosec // machines of a cluster are some thousands

	return step.Done()
}

// Reasons of a node's condition Ready.
const (
	reasonUsable   = "Usable"
	reasonOffline  = "Offline"
	reasonSetAside = "SetAside"
)

// nodes reports each node: what is free there, and whether machines are placed on it.
func (s *scope) nodes(seen []hypervisor.Node) []v1alpha1.HypervisorNodeStatus {
	before := map[string][]metav1.Condition{}
	for _, node := range s.cluster.Status.Nodes {
		before[node.Name] = node.Conditions
	}

	out := make([]v1alpha1.HypervisorNodeStatus, 0, len(seen))

	for _, node := range seen {
		status := v1alpha1.HypervisorNodeStatus{
			Name: node.Name, Online: node.Online, Available: amounts(node.Free), Capacity: amounts(node.Total),
			Conditions: before[node.Name],
		}
		ready := metav1.Condition{
			Type: step.Ready, Status: metav1.ConditionTrue, Reason: reasonUsable, ObservedGeneration: s.cluster.Generation,
		}

		switch {
		case !node.Online:
			ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, reasonOffline, cmp.Or(node.Trouble, "is offline")
		case len(node.SetAside) > 0:
			ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, reasonSetAside, strings.Join(node.SetAside, "; ")
		}

		meta.SetStatusCondition(&status.Conditions, ready)
		out = append(out, status)
	}

	return out
}

// gib is what amounts are rounded to, so that the status does not change with every
// page that a machine touches.
const gib = 1 << 30

func amounts(of hypervisor.Resources) *v1alpha1.ResourceAmounts {
	return &v1alpha1.ResourceAmounts{
		CPU:     of.CPU,
		Memory:  *resource.NewQuantity(of.Memory/gib*gib, resource.BinarySI),
		Storage: *resource.NewQuantity(of.Disk/gib*gib, resource.BinarySI),
	}
}

// machinesGone keeps the cluster until no claim needs its connection.
func machinesGone(ctx context.Context, s *scope) step.Result {
	var claims v1alpha1.MachineClaimList
	if err := s.Client.List(ctx, &claims); err != nil {
		return step.Fail(fmt.Errorf("list machine claims: %w", err))
	}

	left := 0

	for i := range claims.Items {
		if ref := claims.Items[i].Status.VMRef; ref != nil && ref.HypervisorCluster == s.cluster.Name {
			left++
		}
	}

	if left > 0 {
		return step.Wait(retryAfter, "MachinesLeft", english.Plural(left, "MachineClaim still has its machine",
			"MachineClaims still have their machines")+" here: delete claims, or wait for jobs to end")
	}

	s.Clusters.Forget(s.cluster.Name)

	return step.Done()
}
