// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// pciMapping is one entry of /cluster/mapping/pci: a resource mapping, which has an entry for each of its devices.
type pciMapping struct {
	ID   string   `json:"id"`
	Map  []string `json:"map"`
	MDev flag     `json:"mdev"`
}

// count returns the number of the mapping's devices on a node.
func (m pciMapping) count(node string) int {
	count := 0

	for _, entry := range m.Map {
		if parseProperty(entry, "node") == node {
			count++
		}
	}

	return count
}

// mappingsByID are the resource mappings of PCI devices that the principal may use.
type mappingsByID map[string]pciMapping

// listMappings lists the resource mappings. Proxmox omits those that the principal may not use.
func (c *client) listMappings(ctx context.Context) (mappingsByID, error) {
	var all []pciMapping

	if err := c.call(ctx, "list resource mappings", http.MethodGet, "/cluster/mapping/pci", nil, &all); err != nil {
		return nil, err
	}

	out := mappingsByID{}
	for _, m := range all {
		out[m.ID] = m
	}

	return out, nil
}

// deviceCounts are numbers of devices by the names of their mappings.
type deviceCounts map[string]int

func newDeviceCounts(devices []hypervisor.Device) deviceCounts {
	out := deviceCounts{}
	for _, d := range devices {
		out[d.Name] += d.Count
	}

	return out
}

// maxHostPCI is the number of options hostpciN (PVE::QemuServer::PCI).
const maxHostPCI = 16

var hostPCIPattern = regexp.MustCompile(`^hostpci\d+$`)

// parseDevices returns the mapped devices in a configuration.
func parseDevices(config vmConfig) deviceCounts {
	out := deviceCounts{}

	for name, option := range config {
		if mapping := parseProperty(option, "mapping"); mapping != "" && hostPCIPattern.MatchString(name) {
			out[mapping]++
		}
	}

	return out
}

// buildDeviceOptions returns the options for the devices of the shape that the configuration lacks. The devices
// of the template count. Machines of type q35 have PCI Express.
func buildDeviceOptions(config vmConfig, shape hypervisor.Shape) (map[string]string, error) {
	options, counts := map[string]string{}, parseDevices(config)

	for _, d := range shape.Devices {
		for range d.Count - counts[d.Name] {
			slot := findHostPCISlot(config, options)
			if slot == "" {
				return nil, hypervisor.Errorf(hypervisor.Rejected, "TooManyDevices",
					"the template and resources.devices have more than %d PCI devices together: request fewer", maxHostPCI)
			}

			options[slot] = "mapping=" + d.Name
			if strings.Contains(config["machine"], "q35") {
				options[slot] += ",pcie=1"
			}
		}
	}

	return options, nil
}

// findHostPCISlot returns the first free option hostpciN, or "" if none is free.
func findHostPCISlot(config vmConfig, options map[string]string) string {
	for i := range maxHostPCI {
		slot := "hostpci" + strconv.Itoa(i)
		if config[slot] == "" && options[slot] == "" {
			return slot
		}
	}

	return ""
}

// checkDevices verifies that the devices of the shape exist, that the principal may use them, and that one of the
// nodes has enough of them.
func (p *Provider) checkDevices(ctx context.Context, granted permissions, nodes []hypervisor.Node, shape hypervisor.Shape) error {
	if len(shape.Devices) == 0 {
		return nil
	}

	var requirements []requirement
	for _, d := range shape.Devices {
		requirements = append(requirements, requirement{paths: []string{mappingPath(d.Name)}, privileges: []string{"Mapping.Use"}})
	}

	if problems := p.client.describeUnmet(granted, requirements); len(problems) > 0 {
		return newPrivilegesError("use the devices of resources.devices", problems)
	}

	mappings, _, err := p.mappingCache.get(ctx, p.watcher.busyListAge)
	if err != nil {
		return err
	}

	for _, d := range shape.Devices {
		switch m, exists := mappings[d.Name]; {
		case !exists:
			return hypervisor.Errorf(hypervisor.Rejected, "DeviceNotFound",
				"%s has no resource mapping %s for PCI devices: create it under Datacenter, Resource Mappings, or correct resources.devices",
				p.client.host(), d.Name)
		case bool(m.MDev):
			return hypervisor.Errorf(hypervisor.Rejected, "DeviceMediated",
				"resource mapping %s is for mediated devices, which machines cannot get: use a mapping of whole devices, or of the "+
					"virtual functions of a device (SR-IOV)", d.Name)
		}
	}

	hasAll := func(n hypervisor.Node) bool {
		return !slices.ContainsFunc(shape.Devices, func(d hypervisor.Device) bool { return mappings[d.Name].count(n.Name) < d.Count })
	}
	if !slices.ContainsFunc(nodes, hasAll) {
		return hypervisor.Errorf(hypervisor.Rejected, "DevicesExceedNode",
			"no node with the template has %s: request fewer devices, or add an entry for such a node to the resource mappings",
			formatDevices(shape.Devices))
	}

	return nil
}

func mappingPath(device string) string { return "/mapping/pci/" + device }

func formatDevices(devices []hypervisor.Device) string {
	var parts []string
	for _, d := range devices {
		parts = append(parts, fmt.Sprintf("%d of device %s", d.Count, d.Name))
	}

	return strings.Join(parts, " and ")
}

// readDeviceTotals returns the number of devices of each node, for the devices of the shape.
func (p *Provider) readDeviceTotals(
	ctx context.Context, candidates []candidate, shape hypervisor.Shape,
) (map[string]deviceCounts, error) {
	if len(shape.Devices) == 0 {
		return nil, nil //nolint:nilnil // nil means that no devices are needed
	}

	mappings, _, err := p.mappingCache.get(ctx, p.watcher.idleListAge)
	if err != nil {
		return nil, err
	}

	out := map[string]deviceCounts{}

	for _, c := range candidates {
		out[c.Node] = deviceCounts{}
		for _, d := range shape.Devices {
			out[c.Node][d.Name] = mappings[d.Name].count(c.Node)
		}
	}

	return out, nil
}

// describeLackingDevice returns which device of the shape a node lacks for the machine of the owner, such as "has 0 of 1
// devices gpu free", or "" if it lacks none.
func (p *Provider) describeLackingDevice(node, owner string, shape hypervisor.Shape, total, used map[string]deviceCounts) string {
	for _, d := range shape.Devices {
		if free := max(0, total[node][d.Name]-used[node][d.Name]); free < d.Count {
			return fmt.Sprintf("has %d of %d devices %s free", free, total[node][d.Name], d.Name)
		}

		if reason := p.breaker.exclusionReason(owner, newDeviceTarget(node, d.Name)); reason != "" {
			return "has an excluded device: " + reason
		}
	}

	return ""
}

// sumDevices returns the devices of each node that machines have while they run, or will have. The placement of a
// machine counts until the list shows the machine as running. It cannot include devices that VMs of others have.
func (p *Provider) sumDevices(vms vmsByID, owned map[int]knownVM) map[string]deviceCounts {
	used := map[string]deviceCounts{}
	add := func(node string, devices deviceCounts) {
		if used[node] == nil {
			used[node] = deviceCounts{}
		}

		for name, count := range devices {
			used[node][name] += count
		}
	}

	for id, known := range owned {
		if vms[id].Status == statusRunning {
			add(vms[id].Node, known.devices)
		}
	}

	for _, reserved := range p.ids.Reservations() {
		if !reserved.isRunning(vms) {
			add(reserved.node, reserved.devices)
		}
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	for _, m := range p.machines {
		if pl := m.placement; pl.node != "" && !pl.isAccounted && !pl.isOnStandby && vms[pl.id].Status != statusRunning {
			add(pl.node, pl.devices)
		}
	}

	return used
}

// checkFreeDevices returns the reason why a prepared machine cannot start yet, such as "has 0 of 1 devices gpu free", or "" if
// its node has the devices. Call it while placement.isOnStandby is true, so that the machine's own devices do not count as used.
func (p *Provider) checkFreeDevices(ctx context.Context, vms vmsByID, m *machine, shape hypervisor.Shape) (string, error) {
	if len(shape.Devices) == 0 {
		return "", nil
	}

	owned, err := p.listOwned(ctx, vms)
	if err != nil {
		return "", err
	}

	total, err := p.readDeviceTotals(ctx, []candidate{{Node: m.node}}, shape)
	if err != nil {
		return "", err
	}

	return p.describeLackingDevice(m.node, m.owner.UID, shape, total, p.sumDevices(vms, owned)), nil
}

// recordDevices caches the devices that were written to a machine's configuration.
func (p *Provider) recordDevices(id int, config vmConfig, options map[string]string) {
	devices := parseDevices(config)
	for name, count := range parseDevices(options) {
		devices[name] += count
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	if known, ok := p.knownVMs[id]; ok {
		known.devices = devices
		p.knownVMs[id] = known
	}
}

// recordDeviceFailure excludes the devices of a machine that could not start with them. VMs of others may have them.
func (p *Provider) recordDeviceFailure(m *machine, text string) {
	for _, target := range m.deviceTargets() {
		p.breaker.recordFailure(target, text, excludeAtOnce)
	}
}

// isDeviceFailure reports whether a machine could not start because of its devices.
func isDeviceFailure(reason string) bool {
	return reason == reasonDeviceInUse || reason == reasonDeviceInvalid
}

func (m *machine) deviceTargets() []breakerTarget {
	var out []breakerTarget
	for name := range m.placement.devices {
		out = append(out, newDeviceTarget(m.node, name))
	}

	return out
}
