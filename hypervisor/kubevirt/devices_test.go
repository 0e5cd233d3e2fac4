// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	testclock "k8s.io/utils/clock/testing"
	virtv1 "kubevirt.io/api/core/v1"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
	"github.com/hyperfleet/hyperfleet/hypervisor/kubevirt"
	"github.com/hyperfleet/hyperfleet/kit/retry"
	simkubevirt "github.com/hyperfleet/hyperfleet/sim/kubevirt"
)

// GPUs and other devices are in lists of their own. A standby machine does not start, so nothing uses them.
func TestDevicesOfMachines(t *testing.T) {
	t.Parallel()

	s := newSite(t, simkubevirt.Delays{})
	p := s.newProvider(s.config(), env.Config)
	spec := newMachineSpec()
	spec.Standby = true
	spec.Shape.Devices = []hypervisor.Device{{Name: s.device(), Count: 1, GPU: true}}
	s.advanceTo(p, spec, hypervisor.StatePrepared)

	devices := listAll(s, &virtv1.VirtualMachineList{}).Items[0].Spec.Template.Spec.Domain.Devices
	if diff := cmp.Diff([]virtv1.GPU{{Name: "gpu0", DeviceName: s.device()}}, devices.GPUs); diff != "" || devices.HostDevices != nil {
		t.Errorf("host devices %v, GPUs (-want +got):\n%s", devices.HostDevices, diff)
	}
}

// A machine gets no more devices than a node has, also if all nodes together have them.
func TestDevicesOfOneNode(t *testing.T) {
	t.Parallel()

	s := newSite(t, simkubevirt.Delays{})
	p := s.newProvider(s.config(), env.Config)
	spec := newMachineSpec()
	spec.Shape.Devices = []hypervisor.Device{{Name: s.device(), Count: 2}}

	if _, err := p.Resolve(t.Context(), s.template(), spec.Shape); !hypervisor.Is(err, hypervisor.Rejected) {
		t.Errorf("want an error of kind Rejected, because no node has two devices, got %v", err)
	}

	if _, err := p.Reserve(t.Context(), spec); !hypervisor.Is(err, hypervisor.NoCapacity) {
		t.Errorf("want an error of kind NoCapacity, got %v", err)
	}
}

// newDeviceSpec returns the specification of the n-th machine, with one device.
func (s *site) newDeviceSpec(n int) hypervisor.MachineSpec {
	spec := newMachineSpec()
	spec.Owner.Name, spec.Owner.UID = fmt.Sprint("claim-", n), fmt.Sprintf("c0000000-0000-4000-8000-%012d", n)
	spec.Shape.Devices = []hypervisor.Device{{Name: s.device(), Count: 1, GPU: true}}

	return spec
}

// A standby machine is created while all devices are in use, and waits for one when it is to start.
func TestStandbyMachineWaitsForDevice(t *testing.T) {
	t.Parallel()

	s := newSite(t, simkubevirt.Delays{})
	p := s.newProvider(s.config(), env.Config)

	for n := range len(s.nodes) * devicesPerNode {
		s.advanceTo(p, s.newDeviceSpec(n), hypervisor.StateRunning)
	}

	spec := s.newDeviceSpec(len(s.nodes) * devicesPerNode)
	spec.Standby = true
	spec = s.advanceTo(p, spec, hypervisor.StatePrepared)
	spec.Standby = false

	if _, err := p.Start(t.Context(), spec, newSeed); !hypervisor.Is(err, hypervisor.NoCapacity) {
		t.Errorf("want an error of kind NoCapacity, got %v", err)
	}
}

// Machines that wait for the same devices share the lists of all pods, and see a device that is free a little later.
func TestMachinesThatWaitForDevicesShareLists(t *testing.T) {
	t.Parallel()

	s := newSite(t, simkubevirt.Delays{})
	clk := testclock.NewFakeClock(time.Now())

	var lists atomic.Int32

	p, err := kubevirt.New(s.config(), hypervisor.Options{
		OperatorUID: operatorUID, Clock: clk,
		WrapTransport: func(next http.RoundTripper) http.RoundTripper {
			return retry.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
				if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/pods") {
					lists.Add(1)
				}

				return next.RoundTrip(r)
			})
		},
	}, env.Config)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(p.Close)

	first := s.advanceTo(p, s.newDeviceSpec(0), hypervisor.StateRunning)

	devices := len(s.nodes) * devicesPerNode
	for n := 1; n < devices; n++ {
		s.advanceTo(p, s.newDeviceSpec(n), hypervisor.StateRunning)
	}

	lists.Store(0)

	for n := range 20 {
		if _, err := p.Reserve(t.Context(), s.newDeviceSpec(devices+n)); !hypervisor.Is(err, hypervisor.NoCapacity) {
			t.Fatalf("want an error of kind NoCapacity, got %v", err)
		}
	}

	if n := lists.Load(); n != 1 {
		t.Errorf("20 machines cost %d lists of pods, want 1", n)
	}

	if err := conformance.Delete(t.Context(), p, hypervisor.MachineRef{ID: first.ID, Owner: first.Owner}); err != nil {
		t.Fatal(err)
	}

	s.eventually("the device is free", func() bool {
		clk.Step(time.Minute)

		_, err := p.Reserve(t.Context(), s.newDeviceSpec(devices))

		return err == nil
	})
}

// A list that says that devices are in use is not used to give a machine a device that was free when it was read.
func TestMachineGetsNoDeviceOfAnOldList(t *testing.T) {
	t.Parallel()

	s := newSite(t, simkubevirt.Delays{})
	other, clk := s.newProvider(s.config(), env.Config), testclock.NewFakeClock(time.Now())

	p, err := kubevirt.New(s.config(), hypervisor.Options{OperatorUID: operatorUID, Clock: clk}, env.Config)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(p.Close)

	last := len(s.nodes)*devicesPerNode - 1
	for n := range last {
		s.advanceTo(other, s.newDeviceSpec(n), hypervisor.StateRunning)
	}

	large := s.newDeviceSpec(last + 1)
	large.Shape.Devices[0].Count = devicesPerNode + 1

	if _, err := p.Reserve(t.Context(), large); !hypervisor.Is(err, hypervisor.NoCapacity) {
		t.Fatalf("want an error of kind NoCapacity, got %v", err)
	}

	s.advanceTo(other, s.newDeviceSpec(last), hypervisor.StateRunning)
	clk.Step(time.Second)

	if _, err := p.Reserve(t.Context(), s.newDeviceSpec(last+2)); !hypervisor.Is(err, hypervisor.NoCapacity) {
		t.Errorf("want an error of kind NoCapacity, got %v", err)
	}
}
