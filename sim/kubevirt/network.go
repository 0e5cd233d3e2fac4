// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"strings"

	virtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// networkData is what the guest reads of OpenStack's network_data.json and of
// cloud-init's network configuration, version 2.
type networkData struct {
	Links []struct {
		ID   string `json:"id"`
		Name string `json:"name"`
		MAC  string `json:"ethernet_mac_address"`
	} `json:"links"`
	Networks []struct {
		Link    string `json:"link"`
		Address string `json:"ip_address"`
	} `json:"networks"`
	Ethernets map[string]struct {
		Match struct {
			MAC string `json:"macaddress"`
		} `json:"match"`
		Addresses []string `json:"addresses"`
	} `json:"ethernets"`
	// Network is cloud-init's optional outer key.
	Network *networkData `json:"network"`
}

// interfaces is what the guest's agent reports: for each interface the addresses that
// its network data gives it, else one that the pod network would.
func (c *Cluster) interfaces(
	instance *virtv1.VirtualMachineInstance, drive map[string][]byte,
) []virtv1.VirtualMachineInstanceNetworkInterface {
	var data networkData

	for _, file := range []string{fileNetwork, fileOpenStackNetwork} {
		if raw, ok := drive[file]; ok {
			_ = yaml.Unmarshal(raw, &data)
		}
	}

	if data.Network != nil {
		data = *data.Network
	}

	out := make([]virtv1.VirtualMachineInstanceNetworkInterface, 0, len(instance.Spec.Domain.Devices.Interfaces))

	for i, iface := range instance.Spec.Domain.Devices.Interfaces {
		name := fmt.Sprintf("enp%ds0", i+1)
		if iface.ACPIIndex != 0 {
			name = fmt.Sprintf("eno%d", iface.ACPIIndex)
		}

		mac := iface.MacAddress
		if mac == "" {
			mac = macOf(instance, iface.Name)
		}

		ips := data.addresses(name, mac)
		if len(ips) == 0 && iface.Masquerade != nil {
			ips = []string{c.podIP()}
		}

		report := virtv1.VirtualMachineInstanceNetworkInterface{
			Name: iface.Name, InterfaceName: name, MAC: mac, IPs: ips, InfoSource: "domain, guest-agent", LinkState: "up",
		}
		if len(ips) > 0 {
			report.IP = ips[0]
		}

		out = append(out, report)
	}

	return out
}

// addresses are those of the interface with the name or the MAC, without their prefix
// lengths.
func (d *networkData) addresses(name, mac string) []string {
	var found []string

	for _, link := range d.Links {
		if link.Name != name && !strings.EqualFold(link.MAC, mac) {
			continue
		}

		for _, network := range d.Networks {
			if network.Link == link.ID && network.Address != "" {
				found = append(found, network.Address)
			}
		}
	}

	for key, ethernet := range d.Ethernets {
		if key == name || strings.EqualFold(ethernet.Match.MAC, mac) {
			found = append(found, ethernet.Addresses...)
		}
	}

	for i, address := range found {
		found[i], _, _ = strings.Cut(address, "/")
	}

	return found
}

// macOf is the address that KubeVirt makes for an interface without one: it stays the
// same for a machine as long as its name does.
func macOf(instance *virtv1.VirtualMachineInstance, iface string) string {
	sum := sha256.Sum256([]byte(instance.Namespace + "/" + instance.Name + "/" + iface))

	return fmt.Sprintf("02:%02x:%02x:%02x:%02x:%02x", sum[0], sum[1], sum[2], sum[3], sum[4])
}

// podIP is the next address of the pod network.
func (c *Cluster) podIP() string {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.nextIP++

	return netip.AddrFrom4([4]byte{10, 244, byte(c.nextIP >> 8), byte(c.nextIP)}).String() //nolint:mnd // the usual pod network
}
