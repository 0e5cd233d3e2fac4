// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kill

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/hypervisor/proxmox"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// pollInterval is the interval at which the hypervisor's state is checked, in addition to the check after
// each call.
const pollInterval = 10 * time.Millisecond

// machineWatcher records every machine that is created, and finds violations of invariants.
type machineWatcher struct {
	fleet *fleet.Fleet
	// foreign are the VMs of others at the start.
	foreignVMs []pve.VMState

	mu sync.Mutex
	// machines holds the machines of each claim by the claim's UID. A machine is identified by its VMID and
	// the UUID of its smbios1, which is new for each clone.
	machines map[string]map[string]bool
	// violations is the set of violated invariants.
	violations map[string]bool
}

// newMachineWatcher watches the fleet's hypervisor until the test ends.
func newMachineWatcher(f *fleet.Fleet) *machineWatcher {
	f.T.Helper()

	w := &machineWatcher{fleet: f, machines: map[string]map[string]bool{}, violations: map[string]bool{}}
	w.foreignVMs = filterForeign(f.PVE.Snapshot())

	f.T.Cleanup(f.PVE.OnCall(func(c pve.Call) {
		if c.Phase == pve.PhaseAfter {
			w.check()
		}
	}))

	end, ended := make(chan struct{}), make(chan struct{})

	go func() {
		defer close(ended)

		for {
			select {
			case <-end:
				return
			case <-time.After(pollInterval):
				w.check()
			}
		}
	}()

	f.T.Cleanup(func() { close(end); <-ended })

	return w
}

func filterForeign(state pve.State) []pve.VMState {
	return slices.DeleteFunc(state.VMs, func(vm pve.VMState) bool { return !vm.Foreign })
}

// check records the existing machines, and checks the invariants.
func (w *machineWatcher) check() {
	state := w.fleet.PVE.Snapshot()
	counts := map[string]int{}

	w.mu.Lock()
	defer w.mu.Unlock()

	for _, vm := range state.CreatedVMs() {
		if vm.Lock == "clone" || vm.Lock == "destroyed" {
			continue // a machine has an ownership record only after its clone has ended and before its deletion
		}

		record, err := proxmox.ParseRecord(vm.Config["description"])
		if err != nil {
			w.violations[fmt.Sprintf("VM %d has no ownership record: %v", vm.VMID, err)] = true

			continue
		}

		uid := record.MachineClaim.UID
		counts[uid]++

		if w.machines[uid] == nil {
			w.machines[uid] = map[string]bool{}
		}

		w.machines[uid][fmt.Sprintf("%d %s", vm.VMID, vm.Config["smbios1"])] = true

		if vm.Starts > 1 {
			w.violations[fmt.Sprintf("VM %d was started %d times", vm.VMID, vm.Starts)] = true
		}
	}

	for uid, n := range counts {
		if n > 1 {
			w.violations[fmt.Sprintf("claim %s had %d VMs at the same time", uid, n)] = true
		}
	}
}

// Violations checks the invariants that apply at the end, and returns all violations.
func (w *machineWatcher) Violations() []string {
	w.check()

	w.mu.Lock()
	defer w.mu.Unlock()

	out := slices.Sorted(maps.Keys(w.violations))
	total := 0

	for uid, machines := range w.machines {
		total += len(machines)

		if len(machines) > 1 {
			out = append(out, fmt.Sprintf("%d VMs were created for claim %s: %s", len(machines), uid,
				strings.Join(slices.Sorted(maps.Keys(machines)), ", ")))
		}
	}

	if clones := w.fleet.CountClones(); clones != total {
		out = append(out, fmt.Sprintf("%d clones succeeded, but %d machines were recorded", clones, total))
	}

	if diff := cmp.Diff(w.foreignVMs, filterForeign(w.fleet.PVE.Snapshot())); diff != "" {
		out = append(out, "VMs of other owners changed: "+diff)
	}

	return out
}

// ClaimUIDs returns the UIDs of the claims for which machines were created.
func (w *machineWatcher) ClaimUIDs() []string {
	w.mu.Lock()
	defer w.mu.Unlock()

	return slices.Sorted(maps.Keys(w.machines))
}

// CountMachines returns the number of machines that were created.
func (w *machineWatcher) CountMachines() int {
	w.mu.Lock()
	defer w.mu.Unlock()

	total := 0
	for _, machines := range w.machines {
		total += len(machines)
	}

	return total
}
