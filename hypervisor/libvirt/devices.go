// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"libvirt.org/go/libvirtxml"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// checkDevices returns an error if the host has too few of the shape's devices.
func (h *host) checkDevices(shape hypervisor.Shape) error {
	for _, d := range shape.Devices {
		if has := len(h.config.Devices[d.Name]); has < d.Count {
			return hypervisor.Errorf(hypervisor.Rejected, "DeviceNotFound",
				"host %s has %d of device %s, but the machine needs %d: add their addresses to spec.libvirt.hosts[].devices of the "+
					"HypervisorCluster, or correct resources.devices", h.config.Name, has, d.Name, d.Count)
		}
	}

	return nil
}

// usedAddresses returns the addresses of the PCI devices that other running machines of this operator use. It
// does not know the devices of other domains.
func (h *host) usedAddresses(claimUID string) map[string]bool {
	used := map[string]bool{}

	for _, d := range h.domains() {
		if d.isOurs && d.isActive && d.record.MachineClaim.UID != claimUID {
			for _, address := range d.record.ListDevices() {
				used[address] = true
			}
		}
	}

	return used
}

// describeShortage returns a message with the first device that is not free on the host, or "" if all of the
// machine's devices are free. The devices of machines that are placed but do not run yet are not free. A
// standby machine needs its devices later, so all devices count as free for it. The caller holds the lock.
func (p *placement) describeShortage(h *host, spec hypervisor.MachineSpec, now time.Time) string {
	used := h.usedAddresses(spec.Owner.UID)

	for _, d := range spec.Shape.Devices {
		all := h.config.Devices[d.Name]
		free := len(all)

		if !spec.Standby {
			free -= countUsed(all, used)

			for uid, pending := range p.listPending(h, now) {
				if uid != spec.Owner.UID {
					free -= pending.devices[d.Name]
				}
			}
		}

		if free < d.Count {
			return fmt.Sprintf("%d of %d devices %s are free", max(0, free), len(all), d.Name)
		}
	}

	return ""
}

func countUsed(addresses []string, used map[string]bool) int {
	count := 0

	for _, address := range addresses {
		if used[address] {
			count++
		}
	}

	return count
}

// formatDevices returns the devices of a machine for messages, or "" if it has none.
func formatDevices(devices []hypervisor.Device) string {
	var out strings.Builder
	for _, d := range devices {
		fmt.Fprintf(&out, " and %d of device %s", d.Count, d.Name)
	}

	return out.String()
}

// assign chooses the addresses of the machine's devices. If too few are free, the error is of kind NoCapacity
// and names the device. The caller holds the lock.
func (p *placement) assign(h *host, spec hypervisor.MachineSpec, now time.Time) ([]string, error) {
	used := h.usedAddresses(spec.Owner.UID)

	for uid, pending := range p.listPending(h, now) {
		if uid != spec.Owner.UID {
			for _, address := range pending.addresses {
				used[address] = true
			}
		}
	}

	var out []string

	for _, d := range spec.Shape.Devices {
		all := h.config.Devices[d.Name]
		free := slices.DeleteFunc(slices.Clone(all), func(a string) bool { return used[a] || slices.Contains(out, a) })

		if len(free) < d.Count {
			return nil, hypervisor.Errorf(hypervisor.NoCapacity, "NoCapacity",
				"%d of %d devices %s of host %s are free, but the machine needs %d", len(free), len(all), d.Name, h.config.Name, d.Count)
		}

		out = append(out, free[:d.Count]...)
	}

	return out, nil
}

// assignDevices returns the addresses of the devices of a machine that starts. They stay with it, because they are in its
// ownership record.
func (p *Provider) assignDevices(h *host, spec hypervisor.MachineSpec) (string, error) {
	if len(spec.Shape.Devices) == 0 {
		return "", nil
	}

	p.placement.mu.Lock()
	defer p.placement.mu.Unlock()

	now := p.clock.Now()

	addresses, err := p.placement.assign(h, spec, now)
	if err != nil {
		return "", err
	}

	spec.Standby = false
	p.placement.put(spec, h, now, addresses)

	return strings.Join(addresses, ","), nil
}

// setDevices adds the PCI devices of the host. libvirt detaches them from the host's drivers while the machine runs.
func (d definition) setDevices(devices *libvirtxml.DomainDeviceList) error {
	for _, text := range d.record.ListDevices() {
		var domain, bus, slot, function uint
		if _, err := fmt.Sscanf(text, "%04x:%02x:%02x.%1x", &domain, &bus, &slot, &function); err != nil {
			return fmt.Errorf("parse address %q of a PCI device of host %s: %w", text, d.config.Name, err)
		}

		devices.Hostdevs = append(slices.Clip(devices.Hostdevs), libvirtxml.DomainHostdev{
			Managed: "yes", SubsysPCI: &libvirtxml.DomainHostdevSubsysPCI{Source: &libvirtxml.DomainHostdevSubsysPCISource{
				Address: &libvirtxml.DomainAddressPCI{Domain: &domain, Bus: &bus, Slot: &slot, Function: &function},
			}},
		})
	}

	return nil
}
