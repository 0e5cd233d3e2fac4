// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package netdata

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

// Keys and values of network_data.json.
const (
	keyLinks    = "links"
	keyNetworks = "networks"
	keyServices = "services"

	typeIPv4     = "ipv4"
	typeIPv6     = "ipv6"
	typeIPv4DHCP = "ipv4_dhcp"
	typeIPv6DHCP = "ipv6_dhcp"
	typeSLAAC    = "ipv6_slaac"
	typeDNS      = "dns"
	typePhysical = "phy"
	typeBond     = "bond"
	typeVLAN     = "vlan"
)

// EncodeOpenStack encodes the network as network_data.json for a config drive. It returns an error for settings
// that the format does not support. The schema requires a MAC address for every link. If a link has none, Expand
// adds it when it is known. The schema has no key for search domains, so they are written as dns_search of each
// network, where cloud-init expects them.
//
// A single address (/32) gets the netmask 255.255.255.255. Parsers expect this netmask, although the pattern
// in the published schema does not allow it.
func (n *Network) EncodeOpenStack() ([]byte, error) {
	if err := n.Validate(); err != nil {
		return nil, fmt.Errorf("encode network_data.json: %w", err)
	}

	links, networks, services := newList(), newList(), newList()

	for i := range n.Links {
		l := &n.Links[i]

		switch {
		case l.Options != nil:
			return nil, fmt.Errorf("encode network_data.json: link %q: the format does not support DHCP options", l.ID)
		case strings.ContainsAny(l.Name, "*?["):
			return nil, fmt.Errorf("encode network_data.json: link %q: the name %q is a pattern: use the name of one interface",
				l.ID, l.Name)
		}

		links.Content = append(links.Content, newOSLink(l))
		addOSNetworks(l, networks)
	}

	if len(n.DNS.Search) > 0 {
		if len(networks.Content) == 0 {
			return nil, errors.New("encode network_data.json: search domains need a link with an address, DHCP or a route")
		}

		for _, network := range networks.Content {
			domains := newList()
			for _, d := range n.DNS.Search {
				domains.Content = append(domains.Content, newText(d))
			}

			addKey(network, "dns_search", domains)
		}
	}

	for _, s := range n.DNS.Servers {
		services.Content = append(services.Content, newDNSService(s))
	}

	// A network with DHCP and its own routes needs the list of accepted options: see newAcceptOptions.
	for _, network := range networks.Content {
		if strictyaml.Lookup(network, "routes") != nil && strictyaml.Lookup(network, "type").Value == typeIPv4DHCP {
			addKey(network, "accept_dhcp_option", newAcceptOptions(len(n.DNS.Servers) > 0))
		}
	}

	root := newMapping()
	addKey(root, keyLinks, links)
	addKey(root, keyNetworks, networks)
	addKey(root, keyServices, services)

	return encodeJSON(root)
}

// newAcceptOptions returns the list of DHCP options that afterburn accepts. Afterburn uses the routes of a
// network with DHCP only if the list does not contain "router". Other programs ignore the list.
func newAcceptOptions(hasServers bool) *yaml.Node {
	options := newList(newText("subnet_mask"))
	if !hasServers {
		options.Content = append(options.Content, newText("domain_name_server"))
	}

	return options
}

func newDNSService(server netip.Addr) *yaml.Node {
	service := newMapping()
	addKey(service, "type", newText(typeDNS))
	addKey(service, "address", newText(server.String()))

	return service
}

func newOSLink(l *Link) *yaml.Node {
	m := newMapping()
	addKey(m, "id", newText(l.ID))

	if l.Name != "" {
		addKey(m, "name", newText(l.Name))
	}

	macKey := "ethernet_mac_address"

	switch {
	case l.VLAN != nil:
		addKey(m, "type", newText(typeVLAN))
		addKey(m, "vlan_id", newNumber(l.VLAN.ID))
		addKey(m, "vlan_link", newText(l.VLAN.Link))

		macKey = "vlan_mac_address"
	case l.Bond != nil:
		members := newList()
		for _, id := range l.Bond.Links {
			members.Content = append(members.Content, newText(id))
		}

		addKey(m, "type", newText(typeBond))
		addKey(m, "bond_mode", newText(l.Bond.Mode))
		addKey(m, "bond_links", members)
	default:
		addKey(m, "type", newText(typePhysical))
	}

	if l.MAC != "" {
		addKey(m, macKey, newText(l.MAC))
	}

	if l.MTU != 0 {
		addKey(m, "mtu", newNumber(l.MTU))
	}

	return m
}

// addOSNetworks adds the networks of a link: one for each address, and one for each method of automatic
// configuration. The routes of an address family belong to the first network of the family. If the family has
// no network, its routes get their own network.
func addOSNetworks(l *Link, networks *yaml.Node) {
	for _, isV6 := range []bool{false, true} {
		static, dhcp := typeIPv4, typeIPv4DHCP
		if isV6 {
			static, dhcp = typeIPv6, typeIPv6DHCP
		}

		var added []*yaml.Node

		addNetwork := func(kind string) *yaml.Node {
			m := newNetwork(fmt.Sprintf("network%d", len(networks.Content)), kind, l.ID)
			networks.Content = append(networks.Content, m)
			added = append(added, m)

			return m
		}

		for _, a := range l.Addresses {
			if a.Addr().Is6() == isV6 {
				m := addNetwork(static)
				addKey(m, "ip_address", newText(a.Addr().String()))
				addKey(m, "netmask", newText(formatMask(a)))
			}
		}

		if !isV6 && l.DHCP4 || isV6 && l.DHCP6 {
			addNetwork(dhcp)
		}

		if isV6 && l.SLAAC {
			addNetwork(typeSLAAC)
		}

		routes := newOSRoutes(l.Routes, isV6)
		if len(routes.Content) == 0 {
			continue
		}

		if len(added) == 0 {
			addNetwork(static)
		}

		addKey(added[0], "routes", routes)
	}
}

func newNetwork(id, kind, link string) *yaml.Node {
	m := newMapping()
	addKey(m, "id", newText(id))
	addKey(m, "type", newText(kind))
	addKey(m, "link", newText(link))
	addKey(m, "network_id", newText(id))

	return m
}

func newOSRoutes(routes []Route, v6 bool) *yaml.Node {
	out := newList()

	for _, r := range routes {
		if r.To.Addr().Is6() != v6 {
			continue
		}

		m := newMapping()
		addKey(m, "network", newText(r.To.Addr().String()))
		addKey(m, "netmask", newText(formatMask(r.To)))
		addKey(m, "gateway", newText(r.Via.String()))
		out.Content = append(out.Content, m)
	}

	return out
}

// formatMask formats a prefix length as an address, e.g. 255.255.255.0 or ffff:ffff:ffff:ffff::.
func formatMask(p netip.Prefix) string {
	mask, _ := netip.AddrFromSlice(net.CIDRMask(p.Bits(), p.Addr().BitLen()))

	return mask.String()
}

// parseMask parses the netmask of addr and returns its prefix length. The netmask is an address or a prefix
// length.
func parseMask(mask string, addr netip.Addr) (int, error) {
	errMask := fmt.Errorf("netmask %q: must be a prefix length or a mask such as %s for %s", mask,
		formatMask(netip.PrefixFrom(addr, addr.BitLen()/2)), addr)

	if bits, err := parseUint(mask, addr.BitLen()); err == nil {
		return bits, nil
	}

	a, err := netip.ParseAddr(mask)
	if err != nil || a.Zone() != "" || a.BitLen() != addr.BitLen() {
		return 0, errMask
	}

	ones, size := net.IPMask(a.AsSlice()).Size()
	if size == 0 {
		return 0, errMask
	}

	return ones, nil
}

func parseUint(s string, maximum int) (int, error) {
	v := 0

	for i, c := range s {
		if c < '0' || c > '9' || i > 2 {
			return 0, errors.New("is not a number")
		}

		v = v*10 + int(c-'0')
	}

	if s == "" || v > maximum {
		return 0, errors.New("is out of range")
	}

	return v, nil
}

// osLinkTypes returns the types of a link that is a single device: the types in the schema, and further types
// that cloud-init supports.
func osLinkTypes() []string {
	return []string{
		"bridge", "dvs", "hw_veb", "hyperv", "ovs", "tap", "vhostuser", "vif", typePhysical,
		"bgpovs", "cascading", "ethernet", "hostdev_physical",
	}
}

// parseOpenStack parses network_data.json.
func parseOpenStack(root cursor) (*Network, error) {
	n := &Network{}

	links, err := root.get(keyLinks).items()
	if err != nil {
		return nil, err
	}

	byID := map[string]int{}

	for _, c := range links {
		l, err := parseOSLink(c)
		if err != nil {
			return nil, err
		}

		if _, isDuplicate := byID[l.ID]; isDuplicate {
			return nil, c.errorf("the id %q occurs twice", l.ID)
		}

		byID[l.ID] = len(n.Links)
		n.Links = append(n.Links, l)
	}

	networks, err := root.get(keyNetworks).items()
	if err != nil {
		return nil, err
	}

	for _, c := range networks {
		id, err := c.get("link").text()
		if err != nil {
			return nil, err
		}

		i, ok := byID[id]
		if !ok {
			return nil, c.get("link").errorf("%q: is not the id of a link", id)
		}

		if err := parseOSNetwork(c, &n.Links[i], &n.DNS); err != nil {
			return nil, err
		}
	}

	return n, parseServices(root.get(keyServices), &n.DNS)
}

func parseServices(services cursor, dns *DNS) error {
	items, err := services.items()
	if err != nil {
		return err
	}

	for _, c := range items {
		kind, err := c.get("type").text()
		if err != nil {
			return err
		}

		if kind != typeDNS {
			continue // the model has no other services
		}

		if err := c.get("address").addServerTo(dns); err != nil {
			return err
		}
	}

	return nil
}

func parseOSLink(c cursor) (Link, error) {
	var l Link

	id, err := c.get("id").text()
	if err != nil {
		return l, err
	}

	l.ID = id

	kind, err := c.get("type").text()
	if err != nil {
		return l, err
	}

	macKey := "ethernet_mac_address"

	switch {
	case kind == typeVLAN:
		macKey, l.VLAN = "vlan_mac_address", &VLAN{}
		l.VLAN.ID, err = c.get("vlan_id").parseInteger(0, maxVLAN)

		if err == nil {
			l.VLAN.Link, err = c.get("vlan_link").text()
		}
	case kind == typeBond:
		l.Bond = &Bond{}
		l.Bond.Mode, err = c.get("bond_mode").text()

		if err == nil {
			l.Bond.Links, err = c.get("bond_links").texts()
		}
	case !slices.Contains(osLinkTypes(), kind):
		err = c.get("type").errorf("%q: must be bond, vlan, or one of %s", kind, strings.Join(osLinkTypes(), ", "))
	}

	if err != nil {
		return l, err
	}

	err = parseCommon(c, "name", macKey, &l)

	return l, err
}

// parseCommon parses the settings that links have in both formats: name, MAC address and MTU.
func parseCommon(c cursor, nameKey, macKey string, l *Link) error {
	var err error

	if name := c.get(nameKey); name.isPresent() {
		if l.Name, err = name.text(); err != nil {
			return err
		}
	}

	if mac := c.get(macKey); mac.isPresent() {
		if l.MAC, err = mac.mac(); err != nil {
			return err
		}
	}

	if mtu := c.get("mtu"); mtu.isPresent() {
		l.MTU, err = mtu.parseInteger(1, maxMTU)
	}

	return err
}

// parseOSNetwork parses one network and adds its settings to its link.
func parseOSNetwork(c cursor, l *Link, dns *DNS) error {
	kind, err := c.get("type").text()
	if err != nil {
		return err
	}

	switch kind {
	case typeIPv4, typeIPv6:
		if c.get("ip_address").isPresent() {
			a, err := parseOSAddress(c, kind == typeIPv6)
			if err != nil {
				return err
			}

			l.Addresses = append(l.Addresses, a)
		}
	case typeIPv4DHCP:
		l.DHCP4 = true
	case typeIPv6DHCP, "ipv6_dhcpv6-stateful": // nova itself writes the second
		l.DHCP6 = true
	case typeSLAAC, "ipv6_dhcpv6-stateless":
		l.SLAAC = true
	default:
		return c.get("type").errorf("%q: must be one of %s, %s, %s, %s, %s", kind,
			typeIPv4, typeIPv4DHCP, typeIPv6, typeIPv6DHCP, typeSLAAC)
	}

	routes, err := c.get("routes").items()
	if err != nil {
		return err
	}

	for _, item := range routes {
		r, err := parseOSRoute(item)
		if err != nil {
			return err
		}

		l.Routes = append(l.Routes, r)
	}

	if err := parseServices(c.get(keyServices), dns); err != nil {
		return err
	}

	return parseDNS(c.get("dns_nameservers"), c.get("dns_search"), dns)
}

// parseOSAddress parses ip_address and netmask. Without a netmask, the address must have a prefix length.
func parseOSAddress(c cursor, v6 bool) (netip.Prefix, error) {
	field := c.get("ip_address")

	s, err := field.text()
	if err != nil {
		return netip.Prefix{}, err
	}

	ip, length, hasLength := strings.Cut(s, "/")

	a, err := netip.ParseAddr(ip)
	if err != nil || a.Is6() != v6 || validateAddr(a) != nil {
		return netip.Prefix{}, field.errorf("%q: is not an address of type %s", s, c.get("type").node.Value)
	}

	netmask := c.get("netmask")
	if !netmask.isPresent() {
		if !hasLength {
			return netip.Prefix{}, c.errorf("%s has no netmask", s)
		}
	} else if length, err = netmask.text(); err != nil {
		return netip.Prefix{}, err
	}

	bits, err := parseMask(length, a)
	if err != nil || bits == 0 {
		return netip.Prefix{}, c.errorf("%s: %q is not its netmask: write a mask such as %s or a prefix length", a, length,
			formatMask(netip.PrefixFrom(a, a.BitLen()/2)))
	}

	return netip.PrefixFrom(a, bits), nil
}

func parseOSRoute(c cursor) (Route, error) {
	network, err := c.get("network").text()
	if err != nil {
		return Route{}, err
	}

	a, err := netip.ParseAddr(network)
	if err != nil || a.Zone() != "" || a.Is4In6() {
		return Route{}, c.get("network").errorf("%q: is not the address of a network", network)
	}

	mask, err := c.get("netmask").text()
	if err != nil {
		return Route{}, err
	}

	bits, err := parseMask(mask, a)
	if err != nil {
		return Route{}, c.get("netmask").wrapError(err)
	}

	via, err := c.get("gateway").address()
	if err != nil {
		return Route{}, err
	}

	return Route{To: netip.PrefixFrom(a, bits).Masked(), Via: via}, nil
}
