// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
	"github.com/hyperfleet/hyperfleet/hypervisor/libvirt"
)

// A machine costs at most ten calls from its placement to its deletion, the calls that machines share included.
func TestCallsPerMachine(t *testing.T) {
	t.Parallel()

	const (
		machines = 5
		budget   = 10
	)

	s := newSite(t)

	var (
		mu    sync.Mutex
		calls = map[string]int{}
		total int
	)

	p, err := libvirt.New(s.config, hypervisor.Options{
		// How many of the calls at intervals there are depends on the speed of the computer.
		OperatorUID: "operator", ListInterval: time.Hour,
		WrapCall: func(_ context.Context, call hypervisor.Call, do func() error) error {
			mu.Lock()
			calls[call.Operation]++
			total++
			mu.Unlock()

			return do()
		},
	})
	s.must(err)
	t.Cleanup(p.Close)

	for n := range machines {
		spec := hypervisor.MachineSpec{
			Owner:    hypervisor.Owner{Namespace: "ci", Name: fmt.Sprint("claim-", n), UID: fmt.Sprint("uid-", n)},
			Template: hypervisor.TemplateRef{Name: template}, Shape: hypervisor.Shape{CPU: 1, Memory: 64 * mebibyte, Linked: true},
		}

		_, err := conformance.Create(t.Context(), p, &spec, newSeed)
		s.must(err)

		// The operator asks often while a guest powers off.
		ref := hypervisor.MachineRef{ID: spec.ID, Owner: spec.Owner, PowerOffReported: true}

		for range 5 {
			_, err := p.Get(t.Context(), ref)
			s.must(err)
		}

		s.shutDown(spec.ID)

		for {
			m, err := p.Get(t.Context(), ref)
			s.must(err)

			if m.State == hypervisor.StateStopped {
				break
			}
		}

		s.must(conformance.Delete(t.Context(), p, ref))
	}

	mu.Lock()
	defer mu.Unlock()

	if total > machines*budget {
		t.Errorf("%d machines cost %d calls, want at most %d: %v", machines, total, machines*budget, calls)
	}

	t.Logf("%d machines: %v", machines, calls)
}

// libvirtd reports changes, so the domains are not listed at the operator's interval, which is meant for other hypervisors.
func TestListsAreRare(t *testing.T) {
	t.Parallel()

	for interval, want := range map[time.Duration]time.Duration{
		0: 10 * time.Second, time.Second: 5 * time.Second, 2 * time.Second: 10 * time.Second, 5 * time.Second: 10 * time.Second,
		time.Minute: time.Minute,
	} {
		conn, err := libvirt.New(hypervisor.Config{Name: "rare"}, hypervisor.Options{OperatorUID: "operator", ListInterval: interval})
		if err != nil {
			t.Fatal(err)
		}

		p, ok := conn.(*libvirt.Provider)
		if !ok || p.MaxListAge() != want {
			t.Errorf("interval %s: want lists that are at most %s old", interval, want)
		}

		conn.Close()
	}
}

// A host offers only what its limits allow.
func TestCapacityIsLimited(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	limits := &s.config.Hosts[0]
	limits.MaxCPU, limits.MaxMemory, limits.MaxStoragePercent = 3, 512*mebibyte, 1

	capacity, err := s.connectUntilEnd().Capacity(t.Context())
	s.must(err)

	total, free := capacity.Total, capacity.Free
	if total.CPU != 3 || total.Memory != 512*mebibyte || free.CPU > total.CPU || free.Memory > total.Memory || free.Disk > total.Disk/100 {
		t.Errorf("want at most the limits %+v, got %+v, of which %+v are free", *limits, total, free)
	}
}
