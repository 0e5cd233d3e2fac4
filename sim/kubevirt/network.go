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

// networkData is the part that the guest reads of OpenStack's network_data.json (links and networks) or of
// cloud-init's network configuration version 2 (ethernets).
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
	// Network is the optional top-level key of cloud-init's network configuration.
	Network *networkData `json:"network"`
}

// reportInterfaces returns the interfaces that the guest's agent reports, with the addresses of the
// network data. An interface with masquerade binding and without an address gets one of the pod network.
func (c *Cluster) reportInterfaces(
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
			mac = generateMAC(instance, iface.Name)
		}

		ips := data.addressesOf(name, mac)
		if len(ips) == 0 && iface.Masquerade != nil {
			ips = []string{c.nextPodIP()}
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

// addressesOf returns the addresses of the interface with the name or the MAC address, without their
// prefix lengths.
func (d *networkData) addressesOf(name, mac string) []string {
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

// generateMAC returns the MAC address that KubeVirt generates for an interface without one. The address
// depends only on namespace, machine name and interface name.
func generateMAC(instance *virtv1.VirtualMachineInstance, iface string) string {
	sum := sha256.Sum256([]byte(instance.Namespace + "/" + instance.Name + "/" + iface))

	return fmt.Sprintf("02:%02x:%02x:%02x:%02x:%02x", sum[0], sum[1], sum[2], sum[3], sum[4])
}

// nextPodIP returns the next address of the pod network.
func (c *Cluster) nextPodIP() string {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.nextIP++

	return netip.AddrFrom4([4]byte{10, 244, byte(c.nextIP >> 8), byte(c.nextIP)}).String() //nolint:mnd // the common pod network
}
