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

// OpenStack writes network_data.json for a config drive. Every link needs a MAC address,
// by the schema. Search domains, for which the schema has no key, are written where
// cloud-init looks for them: as dns_search of each network.
//
// A single address (/32) gets the netmask 255.255.255.255, which is what readers expect;
// the pattern of the published schema leaves that one mask out.
func (n *Network) OpenStack() ([]byte, error) { return n.openStack(true) }

// OpenStackTemplate is OpenStack for links whose MAC address is not known yet: such a
// link has none, and Expand puts it in.
func (n *Network) OpenStackTemplate() ([]byte, error) { return n.openStack(false) }

func (n *Network) openStack(needMAC bool) ([]byte, error) {
	if err := n.Validate(); err != nil {
		return nil, fmt.Errorf("write network_data.json: %w", err)
	}

	links, networks, services := list(), list(), list()

	for i := range n.Links {
		l := &n.Links[i]

		switch {
		case l.MAC == "" && needMAC:
			return nil, fmt.Errorf("write network_data.json: link %q: has no MAC address", l.ID)
		case l.Options != nil:
			return nil, fmt.Errorf("write network_data.json: link %q: it has no words for options of DHCP", l.ID)
		case strings.ContainsAny(l.Name, "*?["):
			return nil, fmt.Errorf("write network_data.json: link %q: the name %q is a pattern: write one interface's name", l.ID, l.Name)
		}

		links.Content = append(links.Content, osLink(l))
		osNetworks(l, networks)
	}

	if len(n.DNS.Search) > 0 {
		if len(networks.Content) == 0 {
			return nil, errors.New("write network_data.json: search domains need a link with an address, DHCP or a route")
		}

		for _, network := range networks.Content {
			domains := list()
			for _, d := range n.DNS.Search {
				domains.Content = append(domains.Content, text(d))
			}

			add(network, "dns_search", domains)
		}
	}

	for _, s := range n.DNS.Servers {
		services.Content = append(services.Content, dnsService(s))
	}

	// What asks for DHCP but has routes of its own has to say so: see acceptOptions.
	for _, network := range networks.Content {
		if lookup(network, "routes") != nil && lookup(network, "type").Value == typeIPv4DHCP {
			add(network, "accept_dhcp_option", acceptOptions(len(n.DNS.Servers) > 0))
		}
	}

	root := mapping()
	add(root, keyLinks, links)
	add(root, keyNetworks, networks)
	add(root, keyServices, services)

	return encodeJSON(root)
}

// acceptOptions tells afterburn that the routes next to DHCP are to be used: without a
// list that leaves "router" out it takes none. Others skip the key.
func acceptOptions(ownDNS bool) *yaml.Node {
	options := list(text("subnet_mask"))
	if !ownDNS {
		options.Content = append(options.Content, text("domain_name_server"))
	}

	return options
}

func dnsService(server netip.Addr) *yaml.Node {
	service := mapping()
	add(service, "type", text(typeDNS))
	add(service, "address", text(server.String()))

	return service
}

func osLink(l *Link) *yaml.Node {
	m := mapping()
	add(m, "id", text(l.ID))

	if l.Name != "" {
		add(m, "name", text(l.Name))
	}

	macKey := "ethernet_mac_address"

	switch {
	case l.VLAN != nil:
		add(m, "type", text(typeVLAN))
		add(m, "vlan_id", number(l.VLAN.ID))
		add(m, "vlan_link", text(l.VLAN.Link))

		macKey = "vlan_mac_address"
	case l.Bond != nil:
		members := list()
		for _, id := range l.Bond.Links {
			members.Content = append(members.Content, text(id))
		}

		add(m, "type", text(typeBond))
		add(m, "bond_mode", text(l.Bond.Mode))
		add(m, "bond_links", members)
	default:
		add(m, "type", text(typePhysical))
	}

	if l.MAC != "" {
		add(m, macKey, text(l.MAC))
	}

	if l.MTU != 0 {
		add(m, "mtu", number(l.MTU))
	}

	return m
}

// osNetworks adds a link's networks: one for each address and each way to get one. The
// routes of a family are on its first network; without any they make one of their own.
func osNetworks(l *Link, networks *yaml.Node) {
	for _, v6 := range []bool{false, true} {
		static, dhcp := typeIPv4, typeIPv4DHCP
		if v6 {
			static, dhcp = typeIPv6, typeIPv6DHCP
		}

		var made []*yaml.Node

		network := func(kind string) *yaml.Node {
			m := newNetwork(fmt.Sprintf("network%d", len(networks.Content)), kind, l.ID)
			networks.Content = append(networks.Content, m)
			made = append(made, m)

			return m
		}

		for _, a := range l.Addresses {
			if a.Addr().Is6() == v6 {
				m := network(static)
				add(m, "ip_address", text(a.Addr().String()))
				add(m, "netmask", text(maskOf(a)))
			}
		}

		if !v6 && l.DHCP4 || v6 && l.DHCP6 {
			network(dhcp)
		}

		if v6 && l.SLAAC {
			network(typeSLAAC)
		}

		routes := osRoutes(l.Routes, v6)
		if len(routes.Content) == 0 {
			continue
		}

		if len(made) == 0 {
			network(static)
		}

		add(made[0], "routes", routes)
	}
}

func newNetwork(id, kind, link string) *yaml.Node {
	m := mapping()
	add(m, "id", text(id))
	add(m, "type", text(kind))
	add(m, "link", text(link))
	add(m, "network_id", text(id))

	return m
}

func osRoutes(routes []Route, v6 bool) *yaml.Node {
	out := list()

	for _, r := range routes {
		if r.To.Addr().Is6() != v6 {
			continue
		}

		m := mapping()
		add(m, "network", text(r.To.Addr().String()))
		add(m, "netmask", text(maskOf(r.To)))
		add(m, "gateway", text(r.Via.String()))
		out.Content = append(out.Content, m)
	}

	return out
}

// maskOf is a prefix length as an address: 255.255.255.0, ffff:ffff:ffff:ffff::.
func maskOf(p netip.Prefix) string {
	mask, _ := netip.AddrFromSlice(net.CIDRMask(p.Bits(), p.Addr().BitLen()))

	return mask.String()
}

// maskBits reads a netmask of an address: as an address or as a prefix length.
func maskBits(mask string, of netip.Addr) (int, error) {
	wrong := fmt.Errorf("netmask %q: must be as %s or a prefix length, for %s", mask,
		maskOf(netip.PrefixFrom(of, of.BitLen()/2)), of)

	if bits, err := parseUint(mask, of.BitLen()); err == nil {
		return bits, nil
	}

	a, err := netip.ParseAddr(mask)
	if err != nil || a.Zone() != "" || a.BitLen() != of.BitLen() {
		return 0, wrong
	}

	ones, size := net.IPMask(a.AsSlice()).Size()
	if size == 0 {
		return 0, wrong
	}

	return ones, nil
}

func parseUint(s string, most int) (int, error) {
	v := 0

	for i, c := range s {
		if c < '0' || c > '9' || i > 2 {
			return 0, errors.New("is no number")
		}

		v = v*10 + int(c-'0')
	}

	if s == "" || v > most {
		return 0, errors.New("is out of bounds")
	}

	return v, nil
}

// osLinkTypes are the types of a link that is one device: those of the schema, and those
// that cloud-init knows besides.
func osLinkTypes() []string {
	return []string{
		"bridge", "dvs", "hw_veb", "hyperv", "ovs", "tap", "vhostuser", "vif", typePhysical,
		"bgpovs", "cascading", "ethernet", "hostdev_physical",
	}
}

// parseOpenStack reads network_data.json.
func parseOpenStack(root cursor) (*Network, error) {
	n := &Network{}

	links, err := root.get(keyLinks).list()
	if err != nil {
		return nil, err
	}

	byID := map[string]int{}

	for _, c := range links {
		l, err := parseOSLink(c)
		if err != nil {
			return nil, err
		}

		if _, double := byID[l.ID]; double {
			return nil, c.errorf("the id %q is there twice", l.ID)
		}

		byID[l.ID] = len(n.Links)
		n.Links = append(n.Links, l)
	}

	networks, err := root.get(keyNetworks).list()
	if err != nil {
		return nil, err
	}

	for _, c := range networks {
		id, err := c.get("link").text()
		if err != nil {
			return nil, err
		}

		i, known := byID[id]
		if !known {
			return nil, c.get("link").errorf("%q: is not the id of a link", id)
		}

		if err := parseOSNetwork(c, &n.Links[i], &n.DNS); err != nil {
			return nil, err
		}
	}

	return n, parseServices(root.get(keyServices), &n.DNS)
}

func parseServices(at cursor, dns *DNS) error {
	services, err := at.list()
	if err != nil {
		return err
	}

	for _, c := range services {
		kind, err := c.get("type").text()
		if err != nil {
			return err
		}

		if kind != typeDNS {
			continue // other services are none of ours
		}

		if err := c.get("address").serverInto(dns); err != nil {
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
		l.VLAN.ID, err = c.get("vlan_id").integer(0, maxVLAN)

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

// parseCommon reads what every link may have in either format.
func parseCommon(c cursor, nameKey, macKey string, l *Link) error {
	var err error

	if at := c.get(nameKey); at.present() {
		if l.Name, err = at.text(); err != nil {
			return err
		}
	}

	if at := c.get(macKey); at.present() {
		if l.MAC, err = at.mac(); err != nil {
			return err
		}
	}

	if at := c.get("mtu"); at.present() {
		l.MTU, err = at.integer(1, maxMTU)
	}

	return err
}

// parseOSNetwork adds one network to its link.
func parseOSNetwork(c cursor, l *Link, dns *DNS) error {
	kind, err := c.get("type").text()
	if err != nil {
		return err
	}

	switch kind {
	case typeIPv4, typeIPv6:
		if c.get("ip_address").present() {
			a, err := osAddress(c, kind == typeIPv6)
			if err != nil {
				return err
			}

			l.Addresses = append(l.Addresses, a)
		}
	case typeIPv4DHCP:
		l.DHCP4 = true
	case typeIPv6DHCP, "ipv6_dhcpv6-stateful": // the second is what nova itself writes
		l.DHCP6 = true
	case typeSLAAC, "ipv6_dhcpv6-stateless":
		l.SLAAC = true
	default:
		return c.get("type").errorf("%q: must be one of %s, %s, %s, %s, %s", kind,
			typeIPv4, typeIPv4DHCP, typeIPv6, typeIPv6DHCP, typeSLAAC)
	}

	routes, err := c.get("routes").list()
	if err != nil {
		return err
	}

	for _, at := range routes {
		r, err := osRoute(at)
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

// osAddress reads ip_address and netmask. The address may carry its length itself.
func osAddress(c cursor, v6 bool) (netip.Prefix, error) {
	at := c.get("ip_address")

	s, err := at.text()
	if err != nil {
		return netip.Prefix{}, err
	}

	ip, length, hasLength := strings.Cut(s, "/")

	a, err := netip.ParseAddr(ip)
	if err != nil || a.Is6() != v6 || checkAddr(a) != nil {
		return netip.Prefix{}, at.errorf("%q: is not an address of type %s", s, c.get("type").node.Value)
	}

	mask := c.get("netmask")
	if !mask.present() {
		if !hasLength {
			return netip.Prefix{}, c.errorf("%s has no netmask", s)
		}
	} else if length, err = mask.text(); err != nil {
		return netip.Prefix{}, err
	}

	bits, err := maskBits(length, a)
	if err != nil || bits == 0 {
		return netip.Prefix{}, c.errorf("%s: %q is not its netmask: write %s or a prefix length", a, length,
			maskOf(netip.PrefixFrom(a, a.BitLen()/2)))
	}

	return netip.PrefixFrom(a, bits), nil
}

func osRoute(c cursor) (Route, error) {
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

	bits, err := maskBits(mask, a)
	if err != nil {
		return Route{}, c.get("netmask").wrap(err)
	}

	via, err := c.get("gateway").addr()
	if err != nil {
		return Route{}, err
	}

	return Route{To: netip.PrefixFrom(a, bits).Masked(), Via: via}, nil
}
