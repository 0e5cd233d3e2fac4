// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt

import (
	"strings"
	"testing"
	"time"

	golibvirt "github.com/digitalocean/go-libvirt"
	"k8s.io/utils/clock"
	"libvirt.org/go/libvirtxml"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

const firstGPU, secondGPU = "0000:01:00.0", "0000:02:00.0"

func newDeviceSpec(uid string, count int) hypervisor.MachineSpec {
	return hypervisor.MachineSpec{
		Owner: hypervisor.Owner{UID: uid},
		Shape: hypervisor.Shape{CPU: 2, Memory: 1 << 30, Devices: []hypervisor.Device{{Name: "gpu", Count: count}}},
	}
}

// Each machine gets devices that no running machine has, and that no other machine that starts gets.
func TestDevicesAreAssignedOnce(t *testing.T) {
	t.Parallel()

	h := &host{config: hypervisor.Host{Name: "host-1", Devices: map[string][]string{"gpu": {firstGPU, secondGPU}}}}
	running := domain{uuid: golibvirt.UUID{1}, isOurs: true, isActive: true, record: Record{Record: hypervisor.Record{
		MachineClaim: hypervisor.MachineClaim{UID: "running"}, Devices: firstGPU,
	}}}
	h.putDomain(running)

	var p placement

	first, err := p.assign(h, newDeviceSpec("a", 1), time.Now())
	if err != nil || strings.Join(first, ",") != secondGPU {
		t.Fatalf("want device %s, got %v (%v)", secondGPU, first, err)
	}

	p.put(newDeviceSpec("a", 1), h, time.Now(), first)

	if again, err := p.assign(h, newDeviceSpec("a", 1), time.Now()); err != nil || strings.Join(again, ",") != secondGPU {
		t.Errorf("want the same device again, got %v (%v)", again, err)
	}

	_, err = p.assign(h, newDeviceSpec("b", 1), time.Now())
	if !hypervisor.Is(err, hypervisor.NoCapacity) || !strings.Contains(err.Error(), "0 of 2 devices gpu of host host-1 are free") {
		t.Errorf("want an error of kind NoCapacity, got %v", err)
	}

	running.isActive = false
	h.putDomain(running)

	if got, err := p.assign(h, newDeviceSpec("b", 1), time.Now()); err != nil || strings.Join(got, ",") != firstGPU {
		t.Errorf("want the device of the machine that was powered off, got %v (%v)", got, err)
	}
}

// A machine is placed only on a host with a free device.
func TestMachinesArePlacedByDevice(t *testing.T) {
	t.Parallel()

	plain := &host{config: hypervisor.Host{Name: "plain"}}
	gpus := &host{config: hypervisor.Host{Name: "gpus", Devices: map[string][]string{"gpu": {firstGPU}}}}
	room := hypervisor.Resources{CPU: 8, Memory: 8 << 30}
	more := hypervisor.Resources{CPU: 8, Memory: 64 << 30}
	candidates := []candidate{{host: gpus, free: room, total: room}, {host: plain, free: more, total: more}}
	p := &Provider{clock: clock.RealClock{}}

	chosen, err := p.choose(candidates, newDeviceSpec("a", 1))
	if err != nil || chosen != gpus {
		t.Fatalf("chosen: %v (%v), want the host with GPUs", chosen, err)
	}

	p.placement.put(newDeviceSpec("a", 1), gpus, p.clock.Now(), nil)

	_, err = p.choose(candidates, newDeviceSpec("b", 1))
	if !hypervisor.Is(err, hypervisor.NoCapacity) || !strings.Contains(err.Error(), "gpus: 0 of 1 devices gpu are free") {
		t.Errorf("want an error of kind NoCapacity that names the device, got %v", err)
	}

	standby := newDeviceSpec("c", 1)
	standby.Standby = true

	if chosen, err := p.choose(candidates, standby); err != nil || chosen != gpus {
		t.Errorf("a standby machine is placed on %v (%v)", chosen, err)
	}
}

func TestDevicesInDefinition(t *testing.T) {
	t.Parallel()

	d := definition{
		facts: facts{domainType: typeKVM, arch: archX86}, shape: hypervisor.Shape{CPU: 2, Memory: 1 << 30},
		record: Record{Record: hypervisor.Record{Devices: firstGPU + ",000a:af:1f.7"}},
	}

	text, err := d.encode(neverStarted)
	if err != nil {
		t.Fatal(err)
	}

	var parsed libvirtxml.Domain
	if err := parsed.Unmarshal(text); err != nil || len(parsed.Devices.Hostdevs) != 2 {
		t.Fatalf("want two devices (%v) in:\n%s", err, text)
	}

	second := parsed.Devices.Hostdevs[1]
	address := second.SubsysPCI.Source.Address

	if second.Managed != "yes" || *address.Domain != 0xa || *address.Bus != 0xaf || *address.Slot != 0x1f || *address.Function != 7 {
		t.Errorf("the second device is wrong in:\n%s", text)
	}

	d.record.Devices = "gpu"
	if _, err := d.encode(neverStarted); err == nil {
		t.Error("an address that is none is accepted")
	}
}
