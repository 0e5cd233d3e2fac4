// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
)

// Change is the number of machines to create for a pool, and the machines to delete.
type Change struct {
	Create int
	Delete []v1alpha1.KubevirtMachine
}

// IsEmpty returns whether there is nothing to create or delete.
func (c Change) IsEmpty() bool { return c.Create == 0 && len(c.Delete) == 0 }

// String returns the message for the condition.
func (c Change) String() string {
	return fmt.Sprintf("creating %s, deleting %d", english.Plural(c.Create, "machine", ""), len(c.Delete))
}

// ExcludeDeleting returns the machines that are not being deleted.
func ExcludeDeleting(machines []v1alpha1.KubevirtMachine) []v1alpha1.KubevirtMachine {
	out := make([]v1alpha1.KubevirtMachine, 0, len(machines))

	for i := range machines {
		if machines[i].DeletionTimestamp == nil {
			out = append(out, machines[i])
		}
	}

	return out
}

// PlanChange returns the change that brings the existing machines to the spec and the number of replicas.
func PlanChange(machines []v1alpha1.KubevirtMachine, spec v1alpha1.KubevirtMachineSpec, replicas int) Change {
	var (
		out  Change
		keep []v1alpha1.KubevirtMachine
	)

	for _, m := range ExcludeDeleting(machines) {
		if isOutdated(&m, spec) {
			out.Delete = append(out.Delete, m)
		} else {
			keep = append(keep, m)
		}
	}

	if surplus := len(keep) - replicas; surplus > 0 {
		slices.SortStableFunc(keep, compareDeletionOrder)
		out.Delete = append(out.Delete, keep[:surplus]...)
	}

	out.Create = max(0, replicas-len(keep))

	return out
}

// isOutdated returns whether a machine without addresses and VirtualMachine does not match the network
// configuration of spec any more. Different subnets do not make a machine outdated, because its addresses
// will come from the current pool.
func isOutdated(m *v1alpha1.KubevirtMachine, spec v1alpha1.KubevirtMachineSpec) bool {
	current, desired := m.Spec.BootstrapNetworkConfig, spec.BootstrapNetworkConfig
	if current == nil || len(m.Status.AllocatedBootstrapAddresses) > 0 || m.Status.Ready || progressOf(m) > 0 {
		return false
	}

	if desired == nil || current.NetworkName != desired.NetworkName {
		return true
	}

	return current.NetworkData != nil && desired.NetworkData != nil && *current.NetworkData != *desired.NetworkData
}

// compareDeletionOrder compares machines for sorting. Machines with the least progress are deleted first,
// and then the newest machines, because they probably run the fewest workloads.
func compareDeletionOrder(x, y v1alpha1.KubevirtMachine) int {
	return cmp.Or(
		cmp.Compare(progressOf(&x), progressOf(&y)),
		y.CreationTimestamp.Compare(x.CreationTimestamp.Time),
		strings.Compare(x.Name, y.Name),
	)
}

// progressOf returns the progress of a machine: 0 without a VirtualMachine, 1 with one, and 2 if it is ready.
func progressOf(m *v1alpha1.KubevirtMachine) int {
	switch {
	case m.Status.Ready:
		return 2
	case m.Status.Phase == "" || m.Status.Phase == v1alpha1.KubevirtMachinePending:
		return 0
	default:
		return 1
	}
}
