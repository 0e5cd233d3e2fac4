// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudinit

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cloudinit/netdata"
)

// Names of the first network device in our network configuration. Where its MAC is
// known the device gets the name, which every network renderer of cloud-init can do;
// matching by a pattern is for netplan alone.
const (
	netName    = "eth0"
	netPattern = "primary"
)

// anyDevice matches the names that Linux gives to Ethernet devices.
const anyDevice = "e*"

// netID is the first network device's name in the network configuration.
func netID(in *Input) string {
	switch {
	case in.MAC != "":
		return netName
	case in.Network == nil || in.Network.Interface == "" || strings.ContainsAny(in.Network.Interface, "*?"):
		return netPattern
	default:
		return in.Network.Interface // what is called so needs no match: all renderers can do it
	}
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

	network := &netdata.Network{Links: []netdata.Link{{ID: netID(in), Name: cmp.Or(spec.Interface, anyDevice)}}}
	link := &network.Links[0]

	if in.MAC != "" {
		mac, err := net.ParseMAC(in.MAC)
		if err != nil {
			return nil, fmt.Errorf("network: %q is not a MAC address: %w", in.MAC, err)
		}

		link.MAC, link.Name = mac.String(), netName
	}

	var err error

	switch spec.Mode {
	case "", v1alpha1.NetworkModeDHCP:
		dhcp(in, spec.DHCP, link)
	case v1alpha1.NetworkModeStatic:
		err = static(in, spec.Static, network)
	case v1alpha1.NetworkModeCloudInit:
		if spec.AddressPool() != nil {
			return nil, networkDataError{errEmpty}
		}

		return nil, nil
	default:
		err = fmt.Errorf("network.mode: %q: must be dhcp, static or cloud-init", spec.Mode)
	}

	if err != nil {
		return nil, err
	}

	if err := names(in.DNS, &network.DNS); err != nil {
		return nil, err
	}

	out, err := network.V2()
	if err != nil {
		return nil, fmt.Errorf("network: %w", err)
	}

	return out, nil
}

// errEmpty says that a pool's addresses have no network data to go into.
var errEmpty = errors.New(fieldNetworkData + ": is empty, and the machine has addresses of network.static.pool: " +
	"write it, or use network.mode static")

// dhcp asks for an address by DHCP.
func dhcp(in *Input, spec *v1alpha1.DHCP, link *netdata.Link) {
	if spec == nil {
		spec = &v1alpha1.DHCP{}
	}

	on := func(p *bool) bool { return p == nil || *p }
	if !on(spec.Enabled) {
		link.NoDHCP = true

		return
	}

	send := on(spec.SendHostname)
	link.DHCP4, link.Options = true, &netdata.DHCPOptions{SendHostname: &send, Identifier: netdata.IdentifierMAC}

	if send {
		link.Options.Hostname = in.Hostname
	}

	no := false
	if !on(spec.UseDNS) {
		link.Options.UseDNS = &no
	}

	if !on(spec.UseRoutes) {
		link.Options.UseRoutes = &no
	}

	if identifier(spec) != identifierMAC {
		link.Options.Identifier = netdata.IdentifierDUID // which one: networkd
	}
}

// static gives the device its fixed addresses, and no others.
func static(in *Input, spec *v1alpha1.StaticNetwork, network *netdata.Network) error {
	if spec == nil {
		return errors.New("network.mode static needs network.static")
	}

	link := &network.Links[0]
	link.NoDHCP = true

	if spec.Pool != nil {
		return pooled(in.Addresses, spec.Pool, network)
	}

	ip, err := netip.ParseAddr(spec.IPAddress)
	if err != nil {
		return fmt.Errorf("network.static.ipAddress: %q is not an IP address", spec.IPAddress)
	}

	bits, err := NetmaskBits(spec.IPAddress, spec.Netmask)
	if err != nil {
		return err
	}

	link.Addresses = []netip.Prefix{netip.PrefixFrom(ip, bits)}

	if spec.Gateway != "" {
		gateway, err := netip.ParseAddr(spec.Gateway)
		if err != nil || gateway.Is4() != ip.Is4() {
			return fmt.Errorf("network.static.gateway: %q is not an IP address of the family of %s", spec.Gateway, ip)
		}

		link.Routes = []netdata.Route{netdata.Default(gateway)}
	}

	network.DNS.Servers, err = servers("network.static.dns", spec.DNS)

	return err
}

// pooled gives the device the addresses that its machine was given of a pool.
func pooled(addresses []netip.Prefix, pool *v1alpha1.AddressPool, network *netdata.Network) error {
	if len(addresses) == 0 {
		return errNoAddress
	}

	link := &network.Links[0]
	link.Addresses = addresses

	for _, text := range pool.Gateway {
		gateway, err := netip.ParseAddr(string(text))
		if err != nil {
			return fmt.Errorf("network.static.pool.gateway: %q is not an IP address", text)
		}

		ofFamily := func(a netip.Prefix) bool { return a.Addr().Is4() == gateway.Is4() }
		if slices.ContainsFunc(addresses, ofFamily) {
			link.Routes = append(link.Routes, netdata.Default(gateway))
		}
	}

	var err error

	network.DNS.Servers, err = servers("network.static.pool.nameservers", pool.Nameservers)

	return err
}

// errNoAddress says that a machine is to have an address of a pool, and has none.
var errNoAddress = errors.New("network.static.pool: the machine was given no address of it")

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
func names(spec v1alpha1.MachineDNS, dns *netdata.DNS) error {
	dns.Search = unique(spec.Search)
	if len(dns.Search) == 0 && spec.Domain != "" {
		dns.Search = []string{spec.Domain}
	}

	if len(dns.Servers) > 0 {
		return nil
	}

	var err error

	dns.Servers, err = servers("network.dns.servers", spec.Servers)

	return err
}

// servers reads addresses of name servers, each once.
func servers[T ~string](field string, in []T) ([]netip.Addr, error) {
	var out []netip.Addr

	for _, text := range in {
		server, err := netip.ParseAddr(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %q is not an IP address", field, text)
		}

		out = append(out, server)
	}

	return unique(out), nil
}

// unique leaves out what was there before, in the order in which it is.
func unique[T comparable](in []T) []T {
	var out []T

	for _, v := range in {
		if !slices.Contains(out, v) {
			out = append(out, v)
		}
	}

	return out
}
