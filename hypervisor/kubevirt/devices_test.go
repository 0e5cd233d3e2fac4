// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	virtv1 "kubevirt.io/api/core/v1"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	simkubevirt "github.com/hyperfleet/hyperfleet/sim/kubevirt"
)

// GPUs and other devices are in lists of their own. A standby machine does not start, so nothing uses them.
func TestDevicesOfMachines(t *testing.T) {
	t.Parallel()

	s := newSite(t, simkubevirt.Delays{})
	p := s.newProvider(s.config(), env.Config)
	spec := newMachineSpec()
	spec.Standby = true
	spec.Shape.Devices = []hypervisor.Device{{Name: deviceName, Count: 1, GPU: true}}
	s.advanceTo(p, spec, hypervisor.StatePrepared)

	devices := listAll(s, &virtv1.VirtualMachineList{}).Items[0].Spec.Template.Spec.Domain.Devices
	if diff := cmp.Diff([]virtv1.GPU{{Name: "gpu0", DeviceName: deviceName}}, devices.GPUs); diff != "" || devices.HostDevices != nil {
		t.Errorf("host devices %v, GPUs (-want +got):\n%s", devices.HostDevices, diff)
	}
}

// A machine gets no more devices than a node has, also if all nodes together have them.
func TestDevicesOfOneNode(t *testing.T) {
	t.Parallel()

	s := newSite(t, simkubevirt.Delays{})
	p := s.newProvider(s.config(), env.Config)
	spec := newMachineSpec()
	spec.Shape.Devices = []hypervisor.Device{{Name: deviceName, Count: 2}}

	if _, err := p.Resolve(t.Context(), s.template(), spec.Shape); !hypervisor.Is(err, hypervisor.Rejected) {
		t.Errorf("want an error of kind Rejected, because no node has two devices, got %v", err)
	}

	if _, err := p.Reserve(t.Context(), spec); !hypervisor.Is(err, hypervisor.NoCapacity) {
		t.Errorf("want an error of kind NoCapacity, got %v", err)
	}
}

// A standby machine is created while all devices are in use, and waits for one when it is to start.
func TestStandbyMachineWaitsForDevice(t *testing.T) {
	t.Parallel()

	s := newSite(t, simkubevirt.Delays{})
	p := s.newProvider(s.config(), env.Config)

	newSpec := func(n int) hypervisor.MachineSpec {
		spec := newMachineSpec()
		spec.Owner.Name, spec.Owner.UID = fmt.Sprint("claim-", n), fmt.Sprintf("c0000000-0000-4000-8000-%012d", n)
		spec.Shape.Devices = []hypervisor.Device{{Name: deviceName, Count: 1, GPU: true}}

		return spec
	}

	for n := range len(s.nodes) * devicesPerNode {
		s.advanceTo(p, newSpec(n), hypervisor.StateRunning)
	}

	spec := newSpec(len(s.nodes) * devicesPerNode)
	spec.Standby = true
	spec = s.advanceTo(p, spec, hypervisor.StatePrepared)
	spec.Standby = false

	if _, err := p.Start(t.Context(), spec, newSeed); !hypervisor.Is(err, hypervisor.NoCapacity) {
		t.Errorf("want an error of kind NoCapacity, got %v", err)
	}
}
