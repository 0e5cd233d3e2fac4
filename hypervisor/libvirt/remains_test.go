// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	golibvirt "github.com/digitalocean/go-libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
)

// removePool makes libvirtd forget the pool. Its files stay.
func (s *site) removePool() {
	s.t.Helper()
	s.use(func(rpc *golibvirt.Libvirt) error { return rpc.StoragePoolDestroy(s.pool(rpc)) })
}

// A host was restarted, and its pool does not start by itself. A machine that ran there is not lost, and no ISO is created
// for it, which would say that it never ran.
func TestMachineIsKnownWithoutPool(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	spec := newTransientSpec()
	s.createUntil(&spec, "resumeDomain", false)
	s.powerOff(spec.ID)
	s.removePool()

	p, ref := s.connectUntilEnd(), hypervisor.MachineRef{ID: spec.ID, Owner: spec.Owner}

	for range 2 { // the second time, the process knows the host
		if m, err := p.Get(t.Context(), ref); !hypervisor.Is(err, hypervisor.Unavailable) {
			t.Errorf("want an error of kind Unavailable while the pool is gone, got %+v (%v)", m, err)
		}

		if m, err := p.Start(t.Context(), spec, newSeed); err == nil || m.State == hypervisor.StateRunning {
			t.Errorf("want an error while the pool is gone, got %+v", m)
		}
	}

	s.must(shared.DefinePool(s.name, s.dir))

	var writes atomic.Int32

	stop := s.calls.Add(func(b conformance.Boundary) {
		if b.Before && b.Write {
			writes.Add(1)
		}
	})
	defer stop()

	m, err := conformance.Create(t.Context(), p, &spec, newSeed)
	if err != nil || m.State != hypervisor.StateStopped || writes.Load() != 0 {
		t.Errorf("want a machine that is off after no change, got %+v (%v) after %d changes", m, err, writes.Load())
	}

	s.must(conformance.Delete(t.Context(), p, ref))

	if state := s.inspect(); len(state.Machines)+len(state.Seeds) != 0 {
		t.Errorf("want nothing left, got %+v", state)
	}
}

// A claim of which nothing was created can be deleted while the pool is gone, also after the connection was lost.
func TestNothingIsDeletedWithoutPool(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	socket := filepath.Join(s.dir, "silent")
	proxy := newSilentHost(t, socket)
	s.config.Hosts[0].URI = "qemu+unix:///session?socket=" + socket
	p, spec := s.connectUntilEnd(), newTransientSpec()

	_, err := conformance.Advance(t.Context(), p, &spec, newSeed) // it reserves the ID
	s.must(err)
	s.removePool()

	m, err := p.Start(t.Context(), spec, newSeed)
	if err == nil {
		t.Errorf("want an error while the pool is gone, got %+v", m)
	}

	proxy.disconnect()

	ref := hypervisor.MachineRef{ID: spec.ID, Owner: spec.Owner}
	s.eventually("the connection is lost", func() bool {
		_, err := p.Get(t.Context(), ref)

		return hypervisor.Is(err, hypervisor.Unavailable)
	})
	s.eventually("the machine is deleted", func() bool { return hypervisor.Is(p.Delete(t.Context(), ref), hypervisor.NotFound) })
	s.must(shared.DefinePool(s.name, s.dir))
}

// A guest waits while the pool with its ISO is gone, because the ISO, with its credential, would appear again with the pool.
func TestGuestWaitsForPool(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	spec := newTransientSpec()
	s.createUntil(&spec, "deleteVolume", true)
	s.removePool()

	p := s.connectUntilEnd()

	m, err := p.Start(t.Context(), spec, newSeed)
	if !hypervisor.Is(err, hypervisor.Rejected) || m.State == hypervisor.StateRunning {
		t.Errorf("want a machine that waits for the pool, got %+v (%v)", m, err)
	}

	s.must(shared.DefinePool(s.name, s.dir))

	m, err = conformance.Create(t.Context(), p, &spec, newSeed)
	if state := s.inspect(); err != nil || m.State != hypervisor.StateRunning || len(state.Seeds) != 0 {
		t.Errorf("want a running machine without an ISO, got %+v (%v) in %+v", m, err, state)
	}
}

// Hosts can share a file system, so that each of them lists the disks of all. A machine that is off is only on the host that
// ran it.
func TestMachineIsOffOnOneHost(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	second := s.config.Hosts[0]
	second.Name = "host-0" // it is asked first
	s.config.Hosts = []hypervisor.Host{second, s.config.Hosts[0]}

	spec := newTransientSpec()
	spec.ID, spec.Node = s.config.IDMin, "host-1"
	_, err := conformance.Create(t.Context(), s.connectUntilEnd(), &spec, newSeed)
	s.must(err)
	s.powerOff(spec.ID)

	p := s.connectUntilEnd()

	m, err := p.Get(t.Context(), hypervisor.MachineRef{ID: spec.ID, Owner: spec.Owner})
	if err != nil || m.Node != "host-1" || m.State != hypervisor.StateStopped {
		t.Errorf("want a machine that is off on host-1, got %+v (%v)", m, err)
	}

	all, err := p.List(t.Context())
	if err != nil || len(all) != 1 || all[0].Node != "host-1" {
		t.Errorf("want the machine only on host-1, got %+v (%v)", all, err)
	}
}

// A process that stands by knows the machines that another process has run in the meantime, even if it was never able to list
// one of them while it ran.
func TestMachinesOfOtherProcessAreKnown(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	standby := s.connectUntilEnd()
	_, err := standby.List(t.Context()) // it is connected
	s.must(err)

	spec := newTransientSpec()
	first := s.connectUntilEnd()
	_, err = conformance.Create(t.Context(), first, &spec, newSeed)
	s.must(err)

	ref := hypervisor.MachineRef{ID: spec.ID, Owner: spec.Owner}

	s.shutDown(spec.ID)
	s.eventually("the machine is off", func() bool {
		m, err := first.Get(t.Context(), ref)

		return err == nil && m.State == hypervisor.StateStopped
	})
	s.eventually("the other process sees that the machine is off", func() bool {
		m, err := standby.Get(t.Context(), ref)

		return err == nil && m.State == hypervisor.StateStopped
	})
}

// A machine whose name is taken by a domain of somebody else leaves its ID, and no ISO.
func TestNoISOIsLeftWithID(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	spec := newTransientSpec()
	spec.Owner.Name = "claim-1"
	s.createUntil(&spec, "uploadVolume", false)
	s.occupyID(t, spec.ID)

	_, err := s.connectUntilEnd().Start(t.Context(), spec, newSeed)
	if !hypervisor.Is(err, hypervisor.IDTaken) {
		t.Errorf("want an error of kind IDTaken, got %v", err)
	}

	if state := s.inspect(); len(state.Seeds) != 0 {
		t.Errorf("want no ISO, got %v", state.Seeds)
	}
}

// No credential waits in the pool until devices are free.
func TestNoISOWaitsForDevices(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	s.config.Hosts[0].Devices = map[string][]string{"gpu": {"0000:01:00.0"}}
	spec := newTransientSpec()
	spec.ID, spec.Node = s.config.IDMin, "host-1" // placed by an earlier process
	spec.Shape.Devices = []hypervisor.Device{{Name: "gpu", Count: 2}}

	_, err := s.connectUntilEnd().Start(t.Context(), spec, func(context.Context) (hypervisor.Seed, error) {
		t.Error("a credential was created")

		return newSeed(t.Context())
	})
	if !hypervisor.Is(err, hypervisor.NoCapacity) {
		t.Errorf("want an error of kind NoCapacity, got %v", err)
	}

	if state := s.inspect(); len(state.Seeds) != 0 {
		t.Errorf("want no ISO, got %v", state.Seeds)
	}
}

// The devices of a machine that was on standby are not free after a restart in the middle of its start.
func TestDevicesOfStartingMachine(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	s.config.Hosts[0].Devices = map[string][]string{"gpu": {"0000:01:00.0"}}
	spec := newTransientSpec()
	spec.Standby = true

	first := s.connect(t, newOperator())
	_, err := conformance.Create(t.Context(), first, &spec, newSeed)
	s.must(err)
	first.Close()

	// The test computer has no device to pass through, so only the record has it.
	s.use(func(rpc *golibvirt.Libvirt) error {
		d, _ := s.find(rpc, spec.ID)

		text, err := rpc.DomainGetXMLDesc(d, golibvirt.DomainXMLInactive)
		s.must(err)

		var definition libvirtxml.Domain

		s.must(definition.Unmarshal(text))
		definition.Devices.Disks = definition.Devices.Disks[:1] // it has no ISO
		definition.Metadata.XML = strings.Replace(definition.Metadata.XML, fmt.Sprintf(`"id":%d`, spec.ID),
			fmt.Sprintf(`"id":%d,"devices":"0000:01:00.0"`, spec.ID), 1)

		text, err = definition.Marshal()
		s.must(err)

		_, err = rpc.DomainCreateXML(text, golibvirt.DomainStartPaused)

		return err
	})

	other := newTransientSpec()
	other.Owner = hypervisor.Owner{Namespace: "ci", Name: "other", UID: "other"}
	other.Shape.Devices = []hypervisor.Device{{Name: "gpu", Count: 1}}

	_, err = s.connectUntilEnd().Reserve(t.Context(), other)
	if !hypervisor.Is(err, hypervisor.NoCapacity) || !strings.Contains(err.Error(), "0 of 1 devices gpu are free") {
		t.Errorf("want an error that no device is free, got %v", err)
	}
}
