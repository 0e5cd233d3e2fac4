// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	apiwatch "k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor/proxmox"
	"github.com/hyperfleet/hyperfleet/sim/pve"
)

// AddressWatcher watches the addresses in the statuses of claims, and finds violations of their invariants:
// no address has two owners, no address is allocated again before the machine of its previous owner is
// deleted, and no claim changes its addresses.
type AddressWatcher struct {
	server *pve.Server
	done   chan struct{}
	stop   func()

	mu sync.Mutex
	// holders holds the UID of the claim that has each address, and previousHolders the UID of the claim that
	// had the address before. assigned holds the addresses of each claim by its UID.
	holders, previousHolders, assigned map[string]string
	// violations is the set of violated invariants.
	violations map[string]bool
}

// WatchAddresses watches the fleet's claims until the test ends, and fails the test for each violation.
func (f *Fleet) WatchAddresses() *AddressWatcher {
	f.T.Helper()

	watcher, err := client.NewWithWatch(f.Env.Config, client.Options{Scheme: f.Env.Scheme})
	if err != nil {
		f.T.Fatal(err)
	}

	stream, err := watcher.Watch(f.T.Context(), &v1alpha1.MachineClaimList{}, client.InNamespace(f.Namespace))
	if err != nil {
		f.T.Fatal(err)
	}

	a := &AddressWatcher{
		server: f.PVE, done: make(chan struct{}), stop: stream.Stop,
		holders: map[string]string{}, previousHolders: map[string]string{}, assigned: map[string]string{},
		violations: map[string]bool{},
	}

	go func() {
		defer close(a.done)

		for event := range stream.ResultChan() {
			if claim, ok := event.Object.(*v1alpha1.MachineClaim); ok {
				a.record(claim, event.Type == apiwatch.Deleted)
			}
		}
	}()

	f.T.Cleanup(func() {
		a.stop()
		<-a.done

		for violation := range a.violations {
			f.T.Error(violation)
		}
	})

	return a
}

// record compares a claim's addresses with those of earlier events, and records violations.
func (a *AddressWatcher) record(claim *v1alpha1.MachineClaim, isDeleted bool) {
	a.mu.Lock()
	defer a.mu.Unlock()

	uid := string(claim.UID)

	var current []string
	if claim.Status.NetworkInfo != nil && !isDeleted {
		current = claim.Status.NetworkInfo.Addresses
	}

	for address, holder := range a.holders {
		if holder == uid && !slices.Contains(current, address) {
			delete(a.holders, address)
			a.previousHolders[address] = uid
		}
	}

	for _, address := range current {
		if holder := a.holders[address]; holder != "" && holder != uid {
			a.violations[fmt.Sprintf("%s was allocated to claim %s while claim %s had it", address, uid, holder)] = true
		}

		if before := a.previousHolders[address]; before != "" && before != uid && a.hasVM(before) {
			a.violations[fmt.Sprintf("%s was allocated to claim %s while the VM of claim %s existed", address, uid, before)] = true
		}

		a.holders[address] = uid
	}

	if len(current) == 0 {
		return
	}

	text := strings.Join(current, " ")
	if before := a.assigned[uid]; before != "" && before != text {
		a.violations[fmt.Sprintf("the addresses of claim %s changed from %s to %s", uid, before, text)] = true
	}

	a.assigned[uid] = text
}

// hasVM returns true if a VM of the claim exists.
func (a *AddressWatcher) hasVM(uid string) bool {
	state := a.server.Snapshot()

	for _, vm := range state.CreatedVMs() {
		record, err := proxmox.ParseRecord(vm.Config["description"])
		if err == nil && record.MachineClaim.UID == uid {
			return true
		}
	}

	return false
}

// countHeld returns the number of addresses in the statuses of claims.
func (a *AddressWatcher) countHeld() int {
	a.mu.Lock()
	defer a.mu.Unlock()

	return len(a.holders)
}

// Violations returns the violations that are visible only after all claims are deleted. uids are the UIDs of
// the claims for which machines were created. Each of them must have had an address, and all addresses must
// be free in the end. Violations stops the watch.
func (a *AddressWatcher) Violations(uids []string) []string {
	// The claims are deleted, but the watch may not have delivered all events yet.
	for end := time.Now().Add(time.Minute); a.countHeld() > 0 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}

	a.stop()
	<-a.done

	a.mu.Lock()
	defer a.mu.Unlock()

	var out []string

	for _, uid := range uids {
		if a.assigned[uid] == "" {
			out = append(out, "a machine was created for claim "+uid+" without an address in its status")
		}
	}

	for address, uid := range a.holders {
		out = append(out, fmt.Sprintf("%s is still allocated to claim %s", address, uid))
	}

	return out
}
