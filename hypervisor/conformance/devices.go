// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"slices"
	"strings"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// newDeviceClaim returns the claim of a machine with one of the devices.
func (e *env) newDeviceClaim(n int, device string) *claim {
	c := e.newClaim(n)
	c.spec.Shape.Devices = []hypervisor.Device{{Name: device, Count: 1, GPU: true}}

	return c
}

// testDevices checks that Resolve rejects a device that does not exist, that each machine has a device of its own, and
// that no machine is placed while all devices are in use.
func testDevices(e *env) {
	p := e.connect(operatorA)

	const unknown = "no-such-device"

	_, err := p.Resolve(e.Context(), e.Template, e.newDeviceClaim(1, unknown).spec.Shape)
	if kind := hypervisor.KindOf(err); kind != hypervisor.Rejected || !strings.Contains(err.Error(), unknown) {
		e.Errorf("want an error of kind Rejected that names device %s, got %q: %v", unknown, kind, err)
	}

	if e.Device == "" {
		return
	}

	claims := make([]*claim, e.Devices)
	for i := range claims {
		claims[i] = e.newDeviceClaim(i+1, e.Device)

		if _, err := p.Resolve(e.Context(), e.Template, claims[i].spec.Shape); err != nil {
			e.Fatal(err)
		}

		e.mustCreate(p, claims[i])
	}

	e.assertOwnDevices(e.Devices)

	next := e.newDeviceClaim(e.Devices+1, e.Device)

	// A new process must find the devices that machines have, too.
	for who, provider := range map[string]hypervisor.Provider{"the same process": p, "a new process": e.connect(operatorA)} {
		_, err := provider.Reserve(e.Context(), next.spec)
		if !hypervisor.Is(err, hypervisor.NoCapacity) || !strings.Contains(err.Error(), e.Device) {
			e.Errorf("%s: want an error of kind NoCapacity that names device %s, got %v", who, e.Device, err)
		}
	}

	e.mustDelete(p, claims[0])
	e.mustCreate(p, next)
	e.assertOwnDevices(e.Devices)

	for _, c := range append(claims[1:], next) {
		e.mustDelete(p, c)
	}

	e.assertNothingLeft()
}

// assertOwnDevices checks that n machines exist, each with one device that no other has.
func (e *env) assertOwnDevices(n int) {
	e.Helper()

	var all []string
	for _, m := range e.Inspect().Machines {
		all = append(all, m.Devices...)
	}

	slices.Sort(all)

	if len(all) != n || len(slices.Compact(slices.Clone(all))) != n {
		e.Errorf("want %d machines with a device of their own, got the devices %q", n, all)
	}
}
