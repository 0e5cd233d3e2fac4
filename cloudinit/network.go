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

// patternID is the ID of the first network device if it is matched by a pattern. Only cloud-init's renderer for
// netplan supports patterns.
const patternID = "primary"

// anyDevice is a pattern that matches the names that Linux gives to Ethernet devices.
const anyDevice = "e*"

// linkID returns the ID of the first network device in the network configuration.
func linkID(in *Input) string {
	if in.Network == nil || in.Network.Interface == "" || strings.ContainsAny(in.Network.Interface, "*?") {
		return patternID
	}

	return in.Network.Interface // a device with this name needs no match, so all renderers support it
}

// renderNetwork returns the user's network-config, or else that of the mode. It returns nil if cloud-init
// should use its own default.
func renderNetwork(in *Input) ([]byte, error) {
	if strings.TrimSpace(in.NetworkData) != "" {
		return renderUserNetwork(in)
	}

	spec := in.Network
	if spec == nil {
		spec = &v1alpha1.MachineNetwork{}
	}

	network := &netdata.Network{Links: []netdata.Link{{ID: linkID(in), Name: cmp.Or(spec.Interface, anyDevice)}}}
	link := &network.Links[0]

	var err error

	switch spec.Mode {
	case "", v1alpha1.NetworkModeDHCP:
		setDHCP(in, spec.DHCP, link)
	case v1alpha1.NetworkModeStatic:
		err = setStatic(in, spec.Static, network)
	case v1alpha1.NetworkModeCloudInit:
		if spec.AddressPool() != nil {
			return nil, networkDataError{errNoNetworkData}
		}

		return nil, nil
	default:
		err = fmt.Errorf("network.mode: %q: must be dhcp, static or cloud-init", spec.Mode)
	}

	if err != nil {
		return nil, err
	}

	if err := setDNS(in.DNS, &network.DNS); err != nil {
		return nil, err
	}

	out, err := network.EncodeV2()
	if err != nil {
		return nil, fmt.Errorf("network: %w", err)
	}

	return out, nil
}

// errNoNetworkData is the error if there is no network data for the addresses of a pool.
var errNoNetworkData = errors.New(fieldNetworkData + ": is empty, but the machine has addresses of network.static.pool: " +
	"set it, or use network.mode static")

// setDHCP configures the link for DHCP, or disables DHCP.
func setDHCP(in *Input, spec *v1alpha1.DHCP, link *netdata.Link) {
	if spec == nil {
		spec = &v1alpha1.DHCP{}
	}

	isOn := func(p *bool) bool { return p == nil || *p }
	if !isOn(spec.Enabled) {
		link.NoDHCP = true

		return
	}

	sendsHostname := isOn(spec.SendHostname)
	link.DHCP4, link.Options = true, &netdata.DHCPOptions{SendHostname: &sendsHostname, Identifier: netdata.IdentifierMAC}

	if sendsHostname {
		link.Options.Hostname = in.Hostname
	}

	disabled := false
	if !isOn(spec.UseDNS) {
		link.Options.UseDNS = &disabled
	}

	if !isOn(spec.UseRoutes) {
		link.Options.UseRoutes = &disabled
	}

	if clientIdentifier(spec) != identifierMAC {
		link.Options.Identifier = netdata.IdentifierDUID // buildDHCPDropIn sets the DUID
	}
}

// setStatic configures the static addresses of the device and disables DHCP.
func setStatic(in *Input, spec *v1alpha1.StaticNetwork, network *netdata.Network) error {
	if spec == nil {
		return errors.New("network.mode static needs network.static")
	}

	link := &network.Links[0]
	link.NoDHCP = true

	if spec.Pool != nil {
		return setPoolAddresses(in.Addresses, spec.Pool, network)
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

		link.Routes = []netdata.Route{netdata.DefaultRoute(gateway)}
	}

	network.DNS.Servers, err = parseServers("network.static.dns", spec.DNS)

	return err
}

// setPoolAddresses configures the addresses that were allocated to the machine from the pool. It uses only
// the gateways of the same families.
func setPoolAddresses(addresses []netip.Prefix, pool *v1alpha1.AddressPool, network *netdata.Network) error {
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

		isSameFamily := func(a netip.Prefix) bool { return a.Addr().Is4() == gateway.Is4() }
		if slices.ContainsFunc(addresses, isSameFamily) {
			link.Routes = append(link.Routes, netdata.DefaultRoute(gateway))
		}
	}

	var err error

	network.DNS.Servers, err = parseServers("network.static.pool.nameservers", pool.Nameservers)

	return err
}

// errNoAddress is the error if a machine needs an address of a pool and none was allocated.
var errNoAddress = errors.New("network.static.pool: no address was allocated to the machine")

// NetmaskBits returns the prefix length of a netmask. The netmask is an address such as 255.255.255.0, or a
// prefix length such as 24.
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

// setDNS sets the DNS configuration. Servers from network.static override those from network.dns.
func setDNS(spec v1alpha1.MachineDNS, dns *netdata.DNS) error {
	dns.Search = removeDuplicates(spec.Search)
	if len(dns.Search) == 0 && spec.Domain != "" {
		dns.Search = []string{spec.Domain}
	}

	if len(dns.Servers) > 0 {
		return nil
	}

	var err error

	dns.Servers, err = parseServers("network.dns.servers", spec.Servers)

	return err
}

// parseServers parses the addresses of name servers and removes duplicates.
func parseServers[T ~string](field string, in []T) ([]netip.Addr, error) {
	var out []netip.Addr

	for _, text := range in {
		server, err := netip.ParseAddr(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %q is not an IP address", field, text)
		}

		out = append(out, server)
	}

	return removeDuplicates(out), nil
}

// removeDuplicates returns the values in their order without duplicates.
func removeDuplicates[T comparable](in []T) []T {
	var out []T

	for _, v := range in {
		if !slices.Contains(out, v) {
			out = append(out, v)
		}
	}

	return out
}
