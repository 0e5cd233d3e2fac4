// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudinit

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

// netConfig is a network-config of version 2, with the keys that netplan knows.
type netConfig struct {
	Version   int                 `yaml:"version"`
	Ethernets map[string]ethernet `yaml:"ethernets"`
}

type ethernet struct {
	Match          netMatch     `yaml:"match"`
	SetName        string       `yaml:"set-name,omitempty"`
	DHCP4          *bool        `yaml:"dhcp4,omitempty"`
	DHCP6          *bool        `yaml:"dhcp6,omitempty"`
	DHCPIdentifier string       `yaml:"dhcp-identifier,omitempty"`
	DHCP4Overrides *dhcpOptions `yaml:"dhcp4-overrides,omitempty"`
	Addresses      []string     `yaml:"addresses,omitempty"`
	Routes         []netRoute   `yaml:"routes,omitempty"`
	Nameservers    *nameservers `yaml:"nameservers,omitempty"`
}

type netMatch struct {
	Name       string `yaml:"name,omitempty"`
	MACAddress string `yaml:"macaddress,omitempty"`
}

type dhcpOptions struct {
	SendHostname *bool  `yaml:"send-hostname,omitempty"`
	Hostname     string `yaml:"hostname,omitempty"`
	UseDNS       *bool  `yaml:"use-dns,omitempty"`
	UseRoutes    *bool  `yaml:"use-routes,omitempty"`
}

type netRoute struct {
	To     string `yaml:"to"`
	Via    string `yaml:"via"`
	OnLink bool   `yaml:"on-link,omitempty"`
}

type nameservers struct {
	Search    []string `yaml:"search,omitempty"`
	Addresses []string `yaml:"addresses,omitempty"`
}

// Names of the first network device in our network configuration. Where its MAC is
// known the device gets the name, which every network renderer of cloud-init can do;
// matching by a pattern is for netplan alone.
const (
	netName    = "eth0"
	netPattern = "primary"
)

// netID is the first network device's name in the network configuration.
func netID(in *Input) string {
	if in.MAC == "" {
		return netPattern
	}

	return netName
}

// renderNetwork gives the network-config: the user's, else what the mode asks for, else
// nil, which leaves it to cloud-init.
func renderNetwork(in *Input) ([]byte, error) {
	if strings.TrimSpace(in.NetworkData) != "" {
		return userNetwork(in)
	}

	spec := in.Network
	if spec == nil {
		spec = &v1alpha1.MachineNetwork{}
	}

	eth := ethernet{Match: netMatch{Name: "e*"}}

	if in.MAC != "" {
		mac, err := net.ParseMAC(in.MAC)
		if err != nil {
			return nil, fmt.Errorf("network: %q is not a MAC address: %w", in.MAC, err)
		}

		eth.Match, eth.SetName = netMatch{MACAddress: mac.String()}, netName
	}

	var err error

	switch spec.Mode {
	case "", v1alpha1.NetworkModeDHCP:
		dhcp(in, spec.DHCP, &eth)
	case v1alpha1.NetworkModeStatic:
		err = static(in, spec.Static, &eth)
	case v1alpha1.NetworkModeCloudInit:
		return nil, nil
	default:
		err = fmt.Errorf("network.mode: %q: must be dhcp, static or cloud-init", spec.Mode)
	}

	if err != nil {
		return nil, err
	}

	if err := names(in.DNS, &eth); err != nil {
		return nil, err
	}

	node, err := toNode(netConfig{Version: 2, Ethernets: map[string]ethernet{netID(in): eth}})
	if err != nil {
		return nil, err
	}

	return encode(node)
}

// userNetwork checks the user's own network-config.
func userNetwork(in *Input) ([]byte, error) {
	text, err := expand(fieldNetworkData, in.NetworkData, &in.Vars, maxOtherData)
	if err != nil {
		return nil, err
	}

	root, err := parseYAML(fieldNetworkData, text)
	if err != nil {
		return nil, err
	}

	if len(root.Content) == 0 {
		return nil, nil
	}

	// Older releases of cloud-init do not look below a top-level network key.
	if inner := lookup(root, "network"); inner != nil && len(root.Content) == 2 {
		root = inner
	}

	version := lookup(root, "version")
	if version == nil || version.Value != "1" && version.Value != "2" {
		return nil, fmt.Errorf("%s line %d: must have version: 1 or version: 2", fieldNetworkData, root.Line)
	}

	return encode(root)
}

// dhcp asks for an address by DHCP.
func dhcp(in *Input, spec *v1alpha1.DHCP, eth *ethernet) {
	if spec == nil {
		spec = &v1alpha1.DHCP{}
	}

	on := func(p *bool) bool { return p == nil || *p }
	enabled, send := on(spec.Enabled), on(spec.SendHostname)
	eth.DHCP4 = &enabled

	if !enabled {
		return
	}

	eth.DHCP4Overrides = &dhcpOptions{SendHostname: &send}
	if send {
		eth.DHCP4Overrides.Hostname = in.Hostname
	}

	no := false
	if !on(spec.UseDNS) {
		eth.DHCP4Overrides.UseDNS = &no
	}

	if !on(spec.UseRoutes) {
		eth.DHCP4Overrides.UseRoutes = &no
	}

	eth.DHCPIdentifier = identifierMAC
	if identifier(spec) != identifierMAC {
		eth.DHCPIdentifier = "duid" // which one: networkd
	}
}

// static gives the device its fixed addresses.
func static(in *Input, spec *v1alpha1.StaticNetwork, eth *ethernet) error {
	if spec == nil {
		return errors.New("network.mode static needs network.static")
	}

	if spec.Pool != nil {
		return pooled(in.Addresses, spec.Pool, eth)
	}

	ip, err := netip.ParseAddr(spec.IPAddress)
	if err != nil {
		return fmt.Errorf("network.static.ipAddress: %q is not an IP address", spec.IPAddress)
	}

	bits, err := NetmaskBits(spec.IPAddress, spec.Netmask)
	if err != nil {
		return err
	}

	fixed(eth, netip.PrefixFrom(ip, bits))

	if spec.Gateway != "" {
		gateway, err := netip.ParseAddr(spec.Gateway)
		if err != nil || gateway.Is4() != ip.Is4() {
			return fmt.Errorf("network.static.gateway: %q is not an IP address of the family of %s", spec.Gateway, ip)
		}

		eth.Routes = []netRoute{defaultRoute(netip.PrefixFrom(ip, bits), gateway)}
	}

	if len(spec.DNS) > 0 {
		eth.Nameservers = &nameservers{Addresses: spec.DNS}
	}

	return nil
}

// fixed gives the device addresses, and no others.
func fixed(eth *ethernet, addresses ...netip.Prefix) {
	no := false
	eth.DHCP4, eth.DHCP6 = &no, &no

	for _, address := range addresses {
		eth.Addresses = append(eth.Addresses, address.String())
	}
}

// defaultRoute leads out of the network by a gateway of the address's family, which is
// reached directly though it may be outside the subnet.
func defaultRoute(address netip.Prefix, gateway netip.Addr) netRoute {
	to := "0.0.0.0/0"
	if gateway.Is6() {
		to = "::/0"
	}

	onLink := !address.Masked().Contains(gateway) && !gateway.IsLinkLocalUnicast()

	return netRoute{To: to, Via: gateway.String(), OnLink: onLink}
}

// pooled gives the device the addresses that its machine was given of a pool.
func pooled(addresses []netip.Prefix, pool *v1alpha1.AddressPool, eth *ethernet) error {
	if len(addresses) == 0 {
		return errors.New("network.static.pool: the machine was given no address of it")
	}

	fixed(eth, addresses...)

	for _, text := range pool.Gateway {
		gateway, err := netip.ParseAddr(string(text))
		if err != nil {
			return fmt.Errorf("network.static.pool.gateway: %q is not an IP address", text)
		}

		for _, address := range addresses {
			if address.Addr().Is4() == gateway.Is4() {
				eth.Routes = append(eth.Routes, defaultRoute(address, gateway))
			}
		}
	}

	if len(pool.Nameservers) > 0 {
		eth.Nameservers = &nameservers{}
		for _, server := range pool.Nameservers {
			eth.Nameservers.Addresses = append(eth.Nameservers.Addresses, string(server))
		}
	}

	return nil
}

// NetmaskBits gives the prefix length of a netmask, which is an address such as
// 255.255.255.0 or a prefix length such as 24.
func NetmaskBits(ipAddress, netmask string) (int, error) {
	ip, err := netip.ParseAddr(ipAddress)
	if err != nil {
		return 0, fmt.Errorf("network.static.ipAddress: %q is not an IP address", ipAddress)
	}

	if bits, err := strconv.Atoi(netmask); err == nil {
		if bits < 1 || bits > ip.BitLen() {
			return 0, fmt.Errorf("network.static.netmask: %d: must be 1 to %d for %s", bits, ip.BitLen(), ip)
		}

		return bits, nil
	}

	mask, err := netip.ParseAddr(netmask)
	if err != nil || mask.BitLen() != ip.BitLen() {
		return 0, fmt.Errorf("network.static.netmask: %q does not fit %s: write it as 255.255.255.0 or as 24", netmask, ip)
	}

	ones, size := net.IPMask(mask.AsSlice()).Size()
	if size == 0 || ones == 0 {
		return 0, fmt.Errorf("network.static.netmask: %s is not a mask: its ones must come first", netmask)
	}

	return ones, nil
}

// names adds the DNS settings; servers of network.static win over those of network.dns.
func names(dns v1alpha1.MachineDNS, eth *ethernet) error {
	ns := nameservers{Search: dns.Search, Addresses: dns.Servers}
	if len(ns.Search) == 0 && dns.Domain != "" {
		ns.Search = []string{dns.Domain}
	}

	if eth.Nameservers != nil {
		ns.Addresses = eth.Nameservers.Addresses
	}

	for _, a := range ns.Addresses {
		if _, err := netip.ParseAddr(a); err != nil {
			return fmt.Errorf("network.dns.servers: %q is not an IP address", a)
		}
	}

	if len(ns.Search)+len(ns.Addresses) > 0 {
		eth.Nameservers = &ns
	}

	return nil
}
