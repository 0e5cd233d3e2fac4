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

// Change is what is to be done about a pool's machines.
type Change struct {
	Create int
	Delete []v1alpha1.KubevirtMachine
}

// None says that there is nothing to do.
func (c Change) None() bool { return c.Create == 0 && len(c.Delete) == 0 }

// String is for the condition.
func (c Change) String() string {
	return fmt.Sprintf("made: %s; deleted: %d", english.Plural(c.Create, "machine", ""), len(c.Delete))
}

// Wanted are the machines that are not being deleted.
func Wanted(all []v1alpha1.KubevirtMachine) []v1alpha1.KubevirtMachine {
	out := make([]v1alpha1.KubevirtMachine, 0, len(all))

	for i := range all {
		if all[i].DeletionTimestamp == nil {
			out = append(out, all[i])
		}
	}

	return out
}

// Decide compares the machines that there are with those that there should be.
func Decide(all []v1alpha1.KubevirtMachine, spec v1alpha1.KubevirtMachineSpec, replicas int) Change {
	var (
		out  Change
		keep []v1alpha1.KubevirtMachine
	)

	for _, m := range Wanted(all) {
		if outdated(&m, spec) {
			out.Delete = append(out.Delete, m)
		} else {
			keep = append(keep, m)
		}
	}

	if surplus := len(keep) - replicas; surplus > 0 {
		slices.SortStableFunc(keep, goesBefore)
		out.Delete = append(out.Delete, keep[:surplus]...)
	}

	out.Create = max(0, replicas-len(keep))

	return out
}

// outdated says of a machine that has nothing yet that the pool would now make it
// otherwise. Other subnets are no reason: addresses come from the pool as it is now.
func outdated(m *v1alpha1.KubevirtMachine, spec v1alpha1.KubevirtMachineSpec) bool {
	have, want := m.Spec.BootstrapNetworkConfig, spec.BootstrapNetworkConfig
	if have == nil || len(m.Status.AllocatedBootstrapAddresses) > 0 || m.Status.Ready || progress(m) > 0 {
		return false
	}

	if want == nil || have.NetworkName != want.NetworkName {
		return true
	}

	return have.NetworkData != nil && want.NetworkData != nil && *have.NetworkData != *want.NetworkData
}

// goesBefore orders machines by which is deleted first: those that carry nothing yet, then the
// newest, on which the least has settled.
func goesBefore(x, y v1alpha1.KubevirtMachine) int {
	return cmp.Or(
		cmp.Compare(progress(&x), progress(&y)),
		y.CreationTimestamp.Compare(x.CreationTimestamp.Time),
		strings.Compare(x.Name, y.Name),
	)
}

// progress is how far a machine has come: nothing yet, a VirtualMachine, ready.
func progress(m *v1alpha1.KubevirtMachine) int {
	switch {
	case m.Status.Ready:
		return 2
	case m.Status.Phase == "" || m.Status.Phase == v1alpha1.KubevirtMachinePending:
		return 0
	default:
		return 1
	}
}
