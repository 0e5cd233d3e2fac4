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

// Addresses sees every address that is ever on record, and tells what must not have been.
type Addresses struct {
	server *pve.Server
	done   chan struct{}
	stop   func()

	mu sync.Mutex
	// holders are the uids by address, left those who had it before, had the addresses by uid.
	holders, left, had map[string]string
	broken             map[string]bool
}

// WatchAddresses watches the fleet's claims until the test's end, and fails it for what must not
// have been.
func (f *Fleet) WatchAddresses() *Addresses {
	f.T.Helper()

	watcher, err := client.NewWithWatch(f.Env.Config, client.Options{Scheme: f.Env.Scheme})
	if err != nil {
		f.T.Fatal(err)
	}

	stream, err := watcher.Watch(f.T.Context(), &v1alpha1.MachineClaimList{}, client.InNamespace(f.Namespace))
	if err != nil {
		f.T.Fatal(err)
	}

	a := &Addresses{
		server: f.PVE, done: make(chan struct{}), stop: stream.Stop,
		holders: map[string]string{}, left: map[string]string{}, had: map[string]string{}, broken: map[string]bool{},
	}

	go func() {
		defer close(a.done)

		for event := range stream.ResultChan() {
			if claim, ok := event.Object.(*v1alpha1.MachineClaim); ok {
				a.note(claim, event.Type == apiwatch.Deleted)
			}
		}
	}()

	f.T.Cleanup(func() {
		a.stop()
		<-a.done

		for wrong := range a.broken {
			f.T.Error(wrong)
		}
	})

	return a
}

// note compares what is on record for a claim with what was.
func (a *Addresses) note(claim *v1alpha1.MachineClaim, gone bool) {
	a.mu.Lock()
	defer a.mu.Unlock()

	uid := string(claim.UID)

	var now []string
	if claim.Status.NetworkInfo != nil && !gone {
		now = claim.Status.NetworkInfo.Addresses
	}

	for address, holder := range a.holders {
		if holder == uid && !slices.Contains(now, address) {
			delete(a.holders, address)
			a.left[address] = uid
		}
	}

	for _, address := range now {
		if holder := a.holders[address]; holder != "" && holder != uid {
			a.broken[fmt.Sprintf("%s was given to claim %s while %s had it", address, uid, holder)] = true
		}

		if before := a.left[address]; before != "" && before != uid && a.runs(before) {
			a.broken[fmt.Sprintf("%s was given to claim %s while the VM of %s was there", address, uid, before)] = true
		}

		a.holders[address] = uid
	}

	if len(now) == 0 {
		return
	}

	text := strings.Join(now, " ")
	if before := a.had[uid]; before != "" && before != text {
		a.broken[fmt.Sprintf("claim %s had %s, and has %s", uid, before, text)] = true
	}

	a.had[uid] = text
}

// runs says whether there is a VM of a claim.
func (a *Addresses) runs(uid string) bool {
	state := a.server.Snapshot()

	for _, vm := range state.Made() {
		record, err := proxmox.ParseRecord(vm.Config["description"])
		if err == nil && record.MachineClaim.UID == uid {
			return true
		}
	}

	return false
}

// held is how many addresses are on record.
func (a *Addresses) held() int {
	a.mu.Lock()
	defer a.mu.Unlock()

	return len(a.holders)
}

// Verdict tells what must not have been, when all claims are gone: a machine that was made for a
// claim of a uid while it had no address, or an address that is not free in the end.
func (a *Addresses) Verdict(made []string) []string {
	// The claims are gone when this is asked for; the watch may be about to tell it.
	for end := time.Now().Add(time.Minute); a.held() > 0 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}

	a.stop()
	<-a.done

	a.mu.Lock()
	defer a.mu.Unlock()

	var out []string

	for _, uid := range made {
		if a.had[uid] == "" {
			out = append(out, "a machine was made for claim "+uid+", which had no address on record")
		}
	}

	for address, uid := range a.holders {
		out = append(out, fmt.Sprintf("%s is on record for claim %s still", address, uid))
	}

	return out
}
