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

// lookEvery is how often the hypervisor is looked at beside the looks at each call.
const lookEvery = 10 * time.Millisecond

// watch sees every machine that is ever made, and tells what must not have been.
type watch struct {
	fleet   *fleet.Fleet
	foreign []pve.VMState

	mu sync.Mutex
	// made are the machines by claim: id and the UUID that a clone is given anew.
	made   map[string]map[string]bool
	broken map[string]bool
}

// newWatch watches until the test's end.
func newWatch(f *fleet.Fleet) *watch {
	f.T.Helper()

	w := &watch{fleet: f, made: map[string]map[string]bool{}, broken: map[string]bool{}}
	w.foreign = foreignOf(f.PVE.Snapshot())

	f.T.Cleanup(f.PVE.OnCall(func(c pve.Call) {
		if c.Phase == pve.After {
			w.look()
		}
	}))

	end, ended := make(chan struct{}), make(chan struct{})

	go func() {
		defer close(ended)

		for {
			select {
			case <-end:
				return
			case <-time.After(lookEvery):
				w.look()
			}
		}
	}()

	f.T.Cleanup(func() { close(end); <-ended })

	return w
}

func foreignOf(state pve.State) []pve.VMState {
	return slices.DeleteFunc(state.VMs, func(vm pve.VMState) bool { return !vm.Foreign })
}

// look notes the machines that there are now.
func (w *watch) look() {
	state := w.fleet.PVE.Snapshot()
	now := map[string]int{}

	w.mu.Lock()
	defer w.mu.Unlock()

	for _, vm := range state.Made() {
		if vm.Lock == "clone" || vm.Lock == "destroyed" {
			continue // it has what is its own from the end of the clone until it is destroyed
		}

		record, err := proxmox.ParseRecord(vm.Config["description"])
		if err != nil {
			w.broken[fmt.Sprintf("VM %d bears no ownership record: %v", vm.VMID, err)] = true

			continue
		}

		uid := record.MachineClaim.UID
		now[uid]++

		if w.made[uid] == nil {
			w.made[uid] = map[string]bool{}
		}

		w.made[uid][fmt.Sprintf("%d %s", vm.VMID, vm.Config["smbios1"])] = true

		if vm.Starts > 1 {
			w.broken[fmt.Sprintf("VM %d was started %d times", vm.VMID, vm.Starts)] = true
		}
	}

	for uid, n := range now {
		if n > 1 {
			w.broken[fmt.Sprintf("claim %s had %d VMs at once", uid, n)] = true
		}
	}
}

// Verdict tells what must not have been.
func (w *watch) Verdict() []string {
	w.look()

	w.mu.Lock()
	defer w.mu.Unlock()

	out := slices.Sorted(maps.Keys(w.broken))
	total := 0

	for uid, machines := range w.made {
		total += len(machines)

		if len(machines) > 1 {
			out = append(out, fmt.Sprintf("%d VMs were made for claim %s: %s", len(machines), uid,
				strings.Join(slices.Sorted(maps.Keys(machines)), ", ")))
		}
	}

	if clones := w.fleet.VMsMade(); clones != total {
		out = append(out, fmt.Sprintf("%d clones succeeded, %d machines were seen", clones, total))
	}

	if diff := cmp.Diff(w.foreign, foreignOf(w.fleet.PVE.Snapshot())); diff != "" {
		out = append(out, "somebody else's VMs changed: "+diff)
	}

	return out
}

// Claims are the uids of those that machines were made for.
func (w *watch) Claims() []string {
	w.mu.Lock()
	defer w.mu.Unlock()

	return slices.Sorted(maps.Keys(w.made))
}

// Machines is how many were made.
func (w *watch) Machines() int {
	w.mu.Lock()
	defer w.mu.Unlock()

	total := 0
	for _, machines := range w.made {
		total += len(machines)
	}

	return total
}
