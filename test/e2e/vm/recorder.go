// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// Machine is what is known of one machine of a run.
type Machine struct {
	Name, Node string
	Times      v1alpha1.MachineTimes
	// DeletedAt is the time at which its claim was no longer seen, or zero. The claim is deleted after the machine.
	DeletedAt time.Time
}

// Recorder records the machines of a fleet, because their claims are deleted with them.
type Recorder struct{ machines map[string]Machine }

// NewRecorder returns an empty Recorder.
func NewRecorder() *Recorder { return &Recorder{machines: map[string]Machine{}} }

// Update reads the claims.
func (r *Recorder) Update(ctx context.Context, f *fleet.Fleet) error {
	now := time.Now()

	var claims v1alpha1.MachineClaimList
	if err := f.Client.List(ctx, &claims); err != nil {
		return fmt.Errorf("list claims: %w", err)
	}

	seen := map[string]bool{}

	for i := range claims.Items {
		claim := &claims.Items[i]
		if claim.Namespace != f.Namespace || claim.Status.VMRef == nil || claim.Status.Times == nil {
			continue
		}

		seen[claim.Name] = true
		r.machines[claim.Name] = Machine{Name: claim.Name, Node: claim.Status.VMRef.Node, Times: *claim.Status.Times}
	}

	for name, m := range r.machines {
		if !seen[name] && m.DeletedAt.IsZero() {
			m.DeletedAt = now
			r.machines[name] = m
		}
	}

	return nil
}

// Nodes returns the nodes of the machines, without duplicates.
func (r *Recorder) Nodes() []string {
	var out []string
	for _, m := range r.machines {
		out = append(out, m.Node)
	}

	slices.Sort(out)

	return slices.Compact(out)
}

// Machines returns the machines.
func (r *Recorder) Machines() []Machine {
	out := make([]Machine, 0, len(r.machines))
	for _, m := range r.machines {
		out = append(out, m)
	}

	return out
}

// Makespan returns the time from the first clone of machines to the last deletion of a claim, and the sum of the times from
// the clone of each machine to the deletion of its claim. It returns an error if fewer machines than want were seen from
// their clone to their deletion, or if one was not seen to be deleted. A machine that was never cloned does not count.
func Makespan(machines []Machine, want int) (makespan, busy time.Duration, err error) {
	var (
		first, last time.Time
		count       int
	)

	for _, m := range machines {
		if m.DeletedAt.IsZero() {
			return 0, 0, fmt.Errorf("measure the makespan: machine %s was not seen to be deleted", m.Name)
		}

		if m.Times.CloneStarted == nil {
			continue
		}

		begin := m.Times.CloneStarted.Time
		busy += m.DeletedAt.Sub(begin)
		count++

		if first.IsZero() || begin.Before(first) {
			first = begin
		}

		if m.DeletedAt.After(last) {
			last = m.DeletedAt
		}
	}

	if count < want {
		return 0, 0, fmt.Errorf("measure the makespan: %d machines were seen from their clone to their deletion, want %d", count, want)
	}

	return last.Sub(first), busy, nil
}
