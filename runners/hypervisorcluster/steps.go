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
	"github.com/hyperfleet/hyperfleet/kit/watch"
	"github.com/hyperfleet/hyperfleet/runners/connect"
)

// retryAfter is the delay before an unreachable cluster is checked again. It is constant, because the
// back-off of the work queue would grow to minutes, and a hypervisor that is reachable again should be used
// at once.
const retryAfter = 10 * time.Second

// ensureConnection reads the Secrets and opens the connection.
func ensureConnection(ctx context.Context, s *scope) step.Result {
	provider, err := s.Clusters.Ensure(ctx, s.cluster)

	switch {
	case err == nil:
		s.provider = provider

		return step.Done().WithCondition("InsecureTLS", insecureTLSStatus(s.cluster), "AsConfigured", "spec.tls.insecureSkipVerify")
	case errclass.ClassOf(err) == errclass.Transient:
		return step.Wait(retryAfter, errclass.ReasonOf(err, "SecretUnavailable"), err.Error())
	default:
		return step.Stall(errclass.ReasonOf(err, "CredentialsInvalid"), err.Error())
	}
}

func insecureTLSStatus(cluster *v1alpha1.HypervisorCluster) metav1.ConditionStatus {
	if cluster.Spec.TLS != nil && cluster.Spec.TLS.InsecureSkipVerify {
		return metav1.ConditionTrue
	}

	return metav1.ConditionFalse
}

// checkConnection calls the hypervisor with the credentials, and checks their privileges and that a node is
// online.
func checkConnection(ctx context.Context, s *scope) step.Result {
	info, err := s.provider.Check(ctx)
	if err != nil {
		s.cluster.Status.ConnectedNodes = 0

		return connect.NewErrorResult(err, retryAfter, "Unavailable")
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
		return step.Wait(retryAfter, "NoNodeOnline", "no usable node of the cluster is online")
	}

	reason, message := "Connected", fmt.Sprintf("%s, %s online",
		strings.TrimSpace(info.Product+" "+info.Version), english.Plural(int(status.ConnectedNodes), "node", ""))
	if len(info.Warnings) > 0 {
		reason, message = v1alpha1.ReasonConnectedWithWarnings, message+"; "+strings.Join(info.Warnings, "; ")
	}

	return step.Done().WithReason(reason, message)
}

// inspectCapacity reports the free resources and the nodes of the cluster.
func inspectCapacity(ctx context.Context, s *scope) step.Result {
	capacity, err := s.provider.Capacity(ctx)
	if err != nil {
		return connect.NewErrorResult(err, retryAfter, "CapacityUnknown")
	}

	status := &s.cluster.Status
	status.AvailableResources = newResourceAmounts(capacity.Free)
	status.Nodes = s.newNodeStatuses(capacity.Nodes)
	status.Machines = int32(capacity.Machines) //nolint:gosec // a cluster has some thousands of machines

	return step.Done()
}

// Reasons of a node's condition Ready.
const (
	reasonUsable   = "Usable"
	reasonOffline  = "Offline"
	reasonExcluded = "Excluded"
)

// newNodeStatuses returns the free resources of each node, and whether the operator places machines on it.
func (s *scope) newNodeStatuses(seen []hypervisor.Node) []v1alpha1.HypervisorNodeStatus {
	previousConditions := map[string][]metav1.Condition{}
	for _, node := range s.cluster.Status.Nodes {
		previousConditions[node.Name] = node.Conditions
	}

	out := make([]v1alpha1.HypervisorNodeStatus, 0, len(seen))

	for _, node := range seen {
		status := v1alpha1.HypervisorNodeStatus{
			Name: node.Name, Online: node.Online, Available: newResourceAmounts(node.Free), Capacity: newResourceAmounts(node.Total),
			Conditions: previousConditions[node.Name],
		}
		ready := metav1.Condition{
			Type: step.Ready, Status: metav1.ConditionTrue, Reason: reasonUsable, ObservedGeneration: s.cluster.Generation,
		}

		switch {
		case !node.Online:
			ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, reasonOffline, cmp.Or(node.OfflineReason, "is offline")
		case len(node.Exclusions) > 0:
			ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, reasonExcluded, strings.Join(node.Exclusions, "; ")
		}

		meta.SetStatusCondition(&status.Conditions, ready)
		out = append(out, status)
	}

	return out
}

// gib is the unit to which reported bytes are rounded down, so that small changes of memory use do not
// change the status.
const gib = 1 << 30

func newResourceAmounts(resources hypervisor.Resources) *v1alpha1.ResourceAmounts {
	return &v1alpha1.ResourceAmounts{
		CPU:     resources.CPU,
		Memory:  *resource.NewQuantity(resources.Memory/gib*gib, resource.BinarySI),
		Storage: *resource.NewQuantity(resources.Disk/gib*gib, resource.BinarySI),
	}
}

// waitForMachineRemoval waits until no claim has a machine on the cluster, then closes the connection.
func waitForMachineRemoval(ctx context.Context, s *scope) step.Result {
	// The cache has only the namespaces of this operator, and other operators may use the cluster, too.
	remaining := 0

	err := watch.ForEach(ctx, s.Live, &v1alpha1.MachineClaimList{}, func(claim *v1alpha1.MachineClaim) {
		if ref := claim.Status.VMRef; ref != nil && ref.HypervisorCluster == s.cluster.Name {
			remaining++
		}
	})
	if err != nil {
		return step.Fail(fmt.Errorf("list machine claims: %w", err))
	}

	if remaining > 0 {
		return step.Wait(retryAfter, "MachinesLeft", english.Plural(remaining, "MachineClaim still has its machine",
			"MachineClaims still have their machines")+" here: delete the claims, or wait until their jobs have finished")
	}

	s.Clusters.Forget(s.cluster.Name)

	return step.Done()
}
