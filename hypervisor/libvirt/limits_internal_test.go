// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	golibvirt "github.com/digitalocean/go-libvirt"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/ids"
)

const gibibyte = 1 << 30

var limitedTemplate = hypervisor.TemplateRef{Name: "template.qcow2"}

// newLimitedHost returns the only host of a provider, with 16 cores and 64 GiB, and a pool that is filled by 60%. A domain of
// somebody else with 4 cores and 8 GiB runs there, and another one is off. The test needs no libvirtd, because time stands
// still and everything was read just now.
func newLimitedHost(t *testing.T, config hypervisor.Host) *host {
	t.Helper()

	config.Name, config.URI, config.StoragePool = "host-1", "qemu+unix:///system", "runners"

	conn, err := New(hypervisor.Config{Name: "limits", Hosts: []hypervisor.Host{config}},
		hypervisor.Options{OperatorUID: "operator", Clock: clocktesting.NewFakeClock(time.Now())})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(conn.Close)

	p, ok := conn.(*Provider)
	if !ok {
		t.Fatalf("the connection is a %T", conn)
	}

	h, now := p.hosts[0], p.clock.Now()
	h.startOnce.Do(h.markTried)

	h.session = &session{facts: facts{domainType: typeQEMU, total: hypervisor.Resources{CPU: 16, Memory: 64 * gibibyte}}}
	h.storage = storage{dir: "/pool", capacity: 100 * gibibyte, available: 40 * gibibyte, readAt: now}
	h.templates[limitedTemplate] = cachedTemplate{readAt: now}
	h.inventory.listedAt = now
	h.putDomain(domain{uuid: golibvirt.UUID{1}, name: "foreign", isActive: true, cpu: 4, memory: 8 * gibibyte})
	h.putDomain(domain{uuid: golibvirt.UUID{2}, name: "off", cpu: 8, memory: 32 * gibibyte})

	return h
}

func newLimitedSpec(n, cpu int, memory int64) hypervisor.MachineSpec {
	name := fmt.Sprint("claim-", n)

	return hypervisor.MachineSpec{
		Owner:    hypervisor.Owner{Namespace: "ci", Name: name, UID: name},
		Template: limitedTemplate, Shape: hypervisor.Shape{CPU: cpu, Memory: memory, Linked: true},
	}
}

// Machines are placed on a host until it is filled to its limits. The last machine of each case is refused, and the message
// names what is left.
func TestHostIsFilledToItsLimits(t *testing.T) {
	t.Parallel()

	for name, c := range map[string]struct {
		config hypervisor.Host
		cpu    int
		memory int64
		// fits is the number of the machines that fit, and refusal the message for the next one.
		fits    int
		refusal string
	}{
		"the memory of the host":         {hypervisor.Host{}, 1, 16 * gibibyte, 3, "host-1: 16 cores and 8192 MiB of memory are free"},
		"less memory":                    {hypervisor.Host{MaxMemory: 56 * gibibyte}, 1, 16 * gibibyte, 3, "host-1: 16 cores and 0 MiB of memory are free"},
		"half the memory":                {hypervisor.Host{MaxMemory: 32 * gibibyte}, 1, 16 * gibibyte, 1, "host-1: 16 cores and 8192 MiB of memory are free"},
		"more memory than the host has":  {hypervisor.Host{MaxMemory: 640 * gibibyte}, 1, 16 * gibibyte, 3, "8192 MiB of memory are free"},
		"cores are shared":               {hypervisor.Host{}, 16, gibibyte, 56, "host-1: 16 cores and 0 MiB of memory are free"},
		"a machine larger than the host": {hypervisor.Host{}, 17, gibibyte, 0, "host-1: 16 cores and 57344 MiB of memory are free"},
		"fewer cores":                    {hypervisor.Host{MaxCPU: 12}, 2, gibibyte, 4, "host-1: 0 cores and 53248 MiB of memory are free"},
		"each core twice":                {hypervisor.Host{MaxCPU: 32}, 14, gibibyte, 2, "host-1: 0 cores and 55296 MiB of memory are free"},
		"the pool has room":              {hypervisor.Host{MaxStoragePercent: 61, MaxCPU: 5}, 1, gibibyte, 1, "host-1: 0 cores"},
		"the pool is full": {
			hypervisor.Host{MaxStoragePercent: 60}, 1, gibibyte, 0, "host-1: 60% of storage pool runners is used, and the limit is 60%",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			p := newLimitedHost(t, c.config).provider

			for n := range c.fits {
				if _, err := p.Reserve(t.Context(), newLimitedSpec(n, c.cpu, c.memory)); err != nil {
					t.Fatalf("machine %d of %d: %v", n+1, c.fits, err)
				}
			}

			_, err := p.Reserve(t.Context(), newLimitedSpec(c.fits, c.cpu, c.memory))
			if !hypervisor.Is(err, hypervisor.NoCapacity) || !strings.Contains(err.Error(), c.refusal) {
				t.Errorf("want machine %d refused with %q, got %v", c.fits+1, c.refusal, err)
			}
		})
	}
}

// A standby machine is prepared on a full host, and starts when the limits leave room for it.
func TestStandbyMachineStartsWithinTheLimits(t *testing.T) {
	t.Parallel()

	for name, c := range map[string]struct {
		config  hypervisor.Host
		refusal string
	}{
		"no limit":    {hypervisor.Host{}, ""},
		"room":        {hypervisor.Host{MaxCPU: 6, MaxMemory: 12 * gibibyte}, ""},
		"memory":      {hypervisor.Host{MaxCPU: 6, MaxMemory: 11 * gibibyte}, "2 cores and 3072 MiB of memory of host host-1 are free"},
		"cores":       {hypervisor.Host{MaxCPU: 5, MaxMemory: 12 * gibibyte}, "1 cores and 4096 MiB of memory of host host-1 are free"},
		"no memory":   {hypervisor.Host{MaxMemory: 8 * gibibyte}, "16 cores and 0 MiB of memory of host host-1 are free"},
		"fewer cores": {hypervisor.Host{MaxCPU: 4}, "0 cores and 57344 MiB of memory of host host-1 are free"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			h := newLimitedHost(t, c.config)
			spec := newLimitedSpec(1, 2, 4*gibibyte)
			spec.Standby = true

			if _, err := h.provider.Reserve(t.Context(), spec); err != nil {
				t.Fatalf("the standby machine is not placed: %v", err)
			}

			spec.Standby = false
			err := h.provider.admit(&machine{host: h, spec: spec, name: "claim-1"}, h.session)

			if c.refusal == "" && err != nil {
				t.Errorf("want the machine started, got %v", err)
			}

			if c.refusal != "" && (!hypervisor.Is(err, hypervisor.NoCapacity) || !strings.Contains(err.Error(), c.refusal)) {
				t.Errorf("want a refusal with %q, got %v", c.refusal, err)
			}
		})
	}
}

// A new process counts the machines that claims hold and that do not run yet. It counts a machine that runs only once, one
// that is being created for as long as that takes, and one that nobody creates for the time of a reservation.
func TestClaimedMachinesFillTheHost(t *testing.T) {
	t.Parallel()

	h := newLimitedHost(t, hypervisor.Host{Devices: map[string][]string{"gpu": {firstGPU}}})
	h.provider.options.ListClaimed = func(context.Context, string) ([]hypervisor.ClaimedMachine, error) {
		return []hypervisor.ClaimedMachine{
			{ID: 100001, Node: "host-1", OwnerUID: "claim-1", CPU: 1, Memory: 40 * gibibyte, Devices: []hypervisor.Device{{Name: "gpu", Count: 1}}},
			{ID: 100002, Node: "gone", OwnerUID: "claim-2", CPU: 1, Memory: 40 * gibibyte},
			{ID: 100003},
		}, nil
	}

	reserve := func(spec hypervisor.MachineSpec, refusal string) {
		t.Helper()

		_, err := h.provider.Reserve(t.Context(), spec)
		if refusal == "" && err != nil || refusal != "" && (err == nil || !strings.Contains(err.Error(), refusal)) {
			t.Errorf("want the refusal %q, got %v", refusal, err)
		}
	}
	withGPU := newLimitedSpec(4, 1, gibibyte)
	withGPU.Shape.Devices = []hypervisor.Device{{Name: "gpu", Count: 1}}

	// 64 GiB without the 8 GiB of the foreign domain and the 40 GiB of the claimed machine.
	reserve(newLimitedSpec(3, 1, 17*gibibyte), "16384 MiB of memory are free")
	reserve(withGPU, "0 of 1 devices gpu are free")
	reserve(newLimitedSpec(3, 1, 12*gibibyte), "")

	// The machine runs, so the host accounts for its memory.
	running := domain{uuid: golibvirt.UUID{3}, name: "claim-1-100001", isOurs: true, isActive: true, cpu: 1, memory: 40 * gibibyte}
	running.record.MachineClaim.UID = "claim-1"
	h.putDomain(running)
	reserve(newLimitedSpec(5, 1, 5*gibibyte), "4096 MiB of memory are free")
	reserve(newLimitedSpec(5, 1, 3*gibibyte), "")
	h.removeDomain(running.uuid)

	// Its creation takes longer than a reservation.
	clk, isFake := h.provider.clock.(*clocktesting.FakeClock)
	if !isFake {
		t.Fatalf("the clock is a %T", h.provider.clock)
	}

	later := func() {
		clk.Step(ids.ReservationTTL - time.Minute)

		h.storage.readAt, h.inventory.listedAt = clk.Now(), clk.Now()
		h.templates[limitedTemplate] = cachedTemplate{readAt: clk.Now()}
	}

	later()
	h.provider.placement.renew(newLimitedSpec(1, 1, 40*gibibyte), h, clk.Now())
	later()
	reserve(newLimitedSpec(6, 1, 17*gibibyte), "16384 MiB of memory are free")
	later()
	reserve(newLimitedSpec(6, 1, 17*gibibyte), "")
}
