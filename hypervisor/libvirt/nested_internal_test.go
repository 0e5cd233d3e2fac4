// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt

import (
	"testing"

	"libvirt.org/go/libvirtxml"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// With nested virtualization, the machine has the CPU of its host, whatever its template has.
func TestNestedVirtualization(t *testing.T) {
	t.Parallel()

	disk := libvirtxml.DomainDisk{Source: &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: "/a.qcow2"}}}
	template := &libvirtxml.Domain{
		CPU: &libvirtxml.DomainCPU{Mode: "custom"}, Devices: &libvirtxml.DomainDeviceList{Disks: []libvirtxml.DomainDisk{disk}},
	}

	for nested, want := range map[bool]string{false: "custom", true: modeHost} {
		d := definition{
			facts: facts{domainType: typeKVM, arch: archX86}, template: diskTemplate{domain: template},
			shape: hypervisor.Shape{CPU: 2, Memory: 1 << 30, Nested: nested},
		}

		text, err := d.encode(neverStarted)
		if err != nil {
			t.Fatal(err)
		}

		var parsed libvirtxml.Domain
		if err := parsed.Unmarshal(text); err != nil || parsed.CPU == nil || parsed.CPU.Mode != want {
			t.Errorf("nested %t: the CPU is %+v, want mode %s (%v)", nested, parsed.CPU, want, err)
		}
	}
}
