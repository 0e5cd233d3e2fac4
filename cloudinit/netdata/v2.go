// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package netdata

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

// Sections of network-config version 2 that the model supports.
const (
	sectionEthernets = "ethernets"
	sectionBonds     = "bonds"
	sectionVLANs     = "vlans"
)

// EncodeV2 encodes the network as cloud-init's network-config version 2 for NoCloud. The order of links is
// ethernets, bonds, vlans. The key of a VLAN or a bond is its name if it has one. A gateway outside of the
// subnets of its link gets the setting on-link.
//
// Default routes are written as 0.0.0.0/0 and ::/0, because afterburn does not support the value default.
func (n *Network) EncodeV2() ([]byte, error) {
	if err := n.Validate(); err != nil {
		return nil, fmt.Errorf("encode network-config: %w", err)
	}

	sections := map[string]*yaml.Node{}
	names := map[string]string{}

	for i := range n.Links {
		names[n.Links[i].ID] = n.Links[i].key()
	}

	for i := range n.Links {
		l := &n.Links[i]
		if sections[l.section()] == nil {
			sections[l.section()] = newMapping()
		}

		if strictyaml.Lookup(sections[l.section()], l.key()) != nil {
			return nil, fmt.Errorf("encode network-config: two links have the key %q", l.key())
		}

		addKey(sections[l.section()], l.key(), l.newV2Entry(names))
	}

	if err := n.addV2DNS(sections); err != nil {
		return nil, err
	}

	root := newMapping()
	addKey(root, "version", newNumber(2))

	for _, s := range []string{sectionEthernets, sectionBonds, sectionVLANs} {
		if sections[s] != nil {
			addKey(root, s, sections[s])
		}
	}

	return strictyaml.Encode(root)
}

// key returns the key of the link in version 2.
func (l *Link) key() string {
	if l.section() != sectionEthernets && l.Name != "" {
		return l.Name
	}

	return l.ID
}

func (l *Link) section() string {
	switch {
	case l.VLAN != nil:
		return sectionVLANs
	case l.Bond != nil:
		return sectionBonds
	default:
		return sectionEthernets
	}
}

// hasIP returns whether the link has any IP configuration.
func (l *Link) hasIP() bool {
	return l.DHCP4 || l.DHCP6 || l.NoDHCP || l.SLAAC || len(l.Addresses)+len(l.Routes) > 0
}

// addV2DNS adds the DNS configuration to each link that has an IP configuration. It returns an error if no
// link has one.
func (n *Network) addV2DNS(sections map[string]*yaml.Node) error {
	if len(n.DNS.Servers)+len(n.DNS.Search) == 0 {
		return nil
	}

	isWritten := false

	for i := range n.Links {
		l := &n.Links[i]
		if !l.hasIP() {
			continue
		}

		ns := newMapping()

		if len(n.DNS.Search) > 0 {
			domains := newList()
			for _, d := range n.DNS.Search {
				domains.Content = append(domains.Content, newText(d))
			}

			addKey(ns, "search", domains)
		}

		if len(n.DNS.Servers) > 0 {
			addKey(ns, "addresses", newTexts(n.DNS.Servers))
		}

		addKey(strictyaml.Lookup(sections[l.section()], l.key()), "nameservers", ns)

		isWritten = true
	}

	if !isWritten {
		return errors.New("encode network-config: name servers need a link with an address, DHCP or a route")
	}

	return nil
}

// newV2Entry returns the entry of a link. names contains the keys of all links by their IDs.
func (l *Link) newV2Entry(names map[string]string) *yaml.Node {
	m := newMapping()

	switch {
	case l.VLAN != nil:
		addKey(m, "id", newNumber(l.VLAN.ID))
		addKey(m, "link", newText(names[l.VLAN.Link]))
	case l.Bond != nil:
		members, parameters := newList(), newMapping()
		for _, id := range l.Bond.Links {
			members.Content = append(members.Content, newText(names[id]))
		}

		addKey(parameters, "mode", newText(l.Bond.Mode))
		addKey(m, "interfaces", members)
		addKey(m, "parameters", parameters)
	default:
		l.addV2Match(m)
	}

	if l.section() != sectionEthernets && l.MAC != "" {
		addKey(m, "macaddress", newText(l.MAC))
	}

	if l.MTU != 0 {
		addKey(m, "mtu", newNumber(l.MTU))
	}

	l.addV2DHCP(m)

	if len(l.Addresses) > 0 {
		addKey(m, "addresses", newTexts(l.Addresses))
	}

	if len(l.Routes) > 0 {
		addKey(m, "routes", l.newV2Routes())
	}

	return m
}

// addV2DHCP adds the settings of DHCP and router advertisements.
func (l *Link) addV2DHCP(m *yaml.Node) {
	if l.NoDHCP {
		addKey(m, "dhcp4", newBoolean(false))
		addKey(m, "dhcp6", newBoolean(false))
	}

	for _, f := range []struct {
		key       string
		isEnabled bool
	}{{"dhcp4", l.DHCP4}, {"dhcp6", l.DHCP6}, {"accept-ra", l.SLAAC}} {
		if f.isEnabled {
			addKey(m, f.key, newBoolean(true))
		}
	}

	o := l.Options
	if o == nil {
		return
	}

	if o.Identifier != "" {
		addKey(m, "dhcp-identifier", newText(o.Identifier))
	}

	overrides := newMapping()
	addOverride := func(key string, value *bool) {
		if value != nil {
			addKey(overrides, key, newBoolean(*value))
		}
	}

	addOverride("send-hostname", o.SendHostname)

	if o.Hostname != "" {
		addKey(overrides, "hostname", newText(o.Hostname))
	}

	addOverride("use-dns", o.UseDNS)
	addOverride("use-routes", o.UseRoutes)

	if len(overrides.Content) > 0 {
		addKey(m, "dhcp4-overrides", overrides)
	}
}

// addV2Match adds the match of the device of an Ethernet link.
func (l *Link) addV2Match(m *yaml.Node) {
	match := newMapping()

	switch {
	case l.MAC != "":
		addKey(match, "macaddress", newText(l.MAC))
	case l.Name != "" && l.Name != l.ID:
		addKey(match, "name", newText(l.Name))
	default:
		return
	}

	addKey(m, "match", match)

	if l.MAC != "" && l.Name != "" {
		addKey(m, "set-name", newText(l.Name))
	}
}

func (l *Link) newV2Routes() *yaml.Node {
	out := newList()

	for _, r := range l.Routes {
		m := newMapping()
		addKey(m, "to", newText(r.To.String()))
		addKey(m, "via", newText(r.Via.String()))

		if l.isOutside(r.Via) {
			addKey(m, "on-link", newBoolean(true))
		}

		out.Content = append(out.Content, m)
	}

	return out
}

// isOutside returns whether the gateway is in none of the link's subnets. It returns false if the link has no
// subnet of the gateway's family, and for link-local gateways outside of the subnets.
func (l *Link) isOutside(gateway netip.Addr) bool {
	hasSubnet := false

	for _, a := range l.Addresses {
		if a.Addr().Is4() == gateway.Is4() {
			if a.Masked().Contains(gateway) {
				return false
			}

			hasSubnet = true
		}
	}

	return hasSubnet && !gateway.IsLinkLocalUnicast()
}

// parseV2 parses network-config version 2.
func parseV2(root cursor) (*Network, error) {
	n := &Network{}

	for _, section := range []string{sectionEthernets, sectionBonds, sectionVLANs} {
		names, entries, err := root.get(section).entries()
		if err != nil {
			return nil, err
		}

		for i, c := range entries {
			l := Link{ID: names[i]}
			if err := parseV2Link(c, section, &l, &n.DNS); err != nil {
				return nil, err
			}

			n.Links = append(n.Links, l)
		}
	}

	return n, nil
}

// unsupportedSections returns the sections whose links the model does not support. Expand keeps them.
func unsupportedSections() []string {
	return []string{"bridges", "wifis", "modems", "tunnels", "vrfs", "dummy-devices", "virtual-ethernets", "nm-devices"}
}

// parseV2Link parses one entry of a section into l, and adds its name servers to dns.
func parseV2Link(c cursor, section string, l *Link, dns *DNS) error {
	if c.isPresent() && c.node.Kind != yaml.MappingNode {
		return c.errorf("must be a mapping (key: value)")
	}

	var err error

	switch section {
	case sectionVLANs:
		l.VLAN, l.Name = &VLAN{}, l.ID
		l.VLAN.ID, err = c.get("id").parseInteger(0, maxVLAN)

		if err == nil {
			l.VLAN.Link, err = c.get("link").text()
		}
	case sectionBonds:
		l.Bond, l.Name = &Bond{Mode: "balance-rr"}, l.ID // the kernel's default

		if mode := c.get("parameters").get("mode"); mode.isPresent() {
			l.Bond.Mode, err = mode.text()
		}

		if err == nil {
			l.Bond.Links, err = c.get("interfaces").texts()
		}
	default:
		err = parseV2Match(c, l)
	}

	if err != nil {
		return err
	}

	if err := parseCommon(c, "set-name", "macaddress", l); err != nil {
		return err
	}

	if err := parseV2IP(c, l); err != nil {
		return err
	}

	ns := c.get("nameservers")

	return parseDNS(ns.get("addresses"), ns.get("search"), dns)
}

func parseV2Match(c cursor, l *Link) error {
	match := c.get("match")
	if !match.isPresent() {
		l.Name = l.ID // netplan matches by the key

		return nil
	}

	return parseCommon(match, "name", "macaddress", l)
}

// parseV2IP parses DHCP, addresses, routes and the deprecated keys gateway4 and gateway6 into l.
func parseV2IP(c cursor, l *Link) error {
	if err := parseV2DHCP(c, l); err != nil {
		return err
	}

	addresses, err := c.get("addresses").items()
	if err != nil {
		return err
	}

	for _, item := range addresses {
		p, err := item.parseV2Address()
		if err != nil {
			return err
		}

		l.Addresses = append(l.Addresses, p)
	}

	routes, err := c.get("routes").items()
	if err != nil {
		return err
	}

	for _, item := range routes {
		r, err := parseV2Route(item)
		if err != nil {
			return err
		}

		l.Routes = append(l.Routes, r)
	}

	for _, key := range []string{"gateway4", "gateway6"} {
		if field := c.get(key); field.isPresent() {
			gateway, err := field.address()
			if err != nil {
				return err
			}

			if gateway.Is4() != (key == "gateway4") {
				return field.errorf("%s: is not of the right address family", gateway)
			}

			l.Routes = append(l.Routes, DefaultRoute(gateway))
		}
	}

	return nil
}

// parseV2DHCP parses the DHCP keys into l. NoDHCP is true only if both dhcp4 and dhcp6 are present and
// false. The options are read only if dhcp4 is true.
func parseV2DHCP(c cursor, l *Link) error {
	var err error

	for key, target := range map[string]*bool{"dhcp4": &l.DHCP4, "dhcp6": &l.DHCP6, "accept-ra": &l.SLAAC} {
		if *target, err = c.get(key).boolean(); err != nil {
			return err
		}
	}

	l.NoDHCP = c.get("dhcp4").isPresent() && c.get("dhcp6").isPresent() && !l.DHCP4 && !l.DHCP6

	if !l.DHCP4 {
		return nil // the options have no effect without DHCP
	}

	options, overrides := DHCPOptions{}, c.get("dhcp4-overrides")

	if identifier := c.get("dhcp-identifier"); identifier.isPresent() {
		if options.Identifier, err = identifier.text(); err != nil {
			return err
		}
	}

	if hostname := overrides.get("hostname"); hostname.isPresent() {
		if options.Hostname, err = hostname.text(); err != nil {
			return err
		}
	}

	for key, target := range map[string]**bool{
		"send-hostname": &options.SendHostname, "use-dns": &options.UseDNS, "use-routes": &options.UseRoutes,
	} {
		if field := overrides.get(key); field.isPresent() {
			value, err := field.boolean()
			if err != nil {
				return err
			}

			*target = &value
		}
	}

	if options != (DHCPOptions{}) {
		l.Options = &options
	}

	return nil
}

// parseV2Address parses an address with its prefix length. Netplan also allows a mapping from the address to
// options.
func (c cursor) parseV2Address() (netip.Prefix, error) {
	s := c.node.Value
	if c.node.Kind == yaml.MappingNode && len(c.node.Content) == 2 {
		s = c.node.Content[0].Value
	}

	p, err := netip.ParsePrefix(s)
	if err != nil || validatePrefix(p) != nil {
		return p, c.errorf("%q: must be an address with its prefix length, such as 10.0.0.5/24", s)
	}

	return p, nil
}

func parseV2Route(c cursor) (Route, error) {
	destination, err := c.get("to").text()
	if err != nil {
		return Route{}, err
	}

	via, err := c.get("via").address()
	if err != nil {
		return Route{}, err
	}

	if destination == "default" {
		return DefaultRoute(via), nil
	}

	if !strings.Contains(destination, "/") { // like in netplan, the address of one machine
		if a, err := netip.ParseAddr(destination); err == nil {
			destination = netip.PrefixFrom(a, a.BitLen()).String()
		}
	}

	p, err := netip.ParsePrefix(destination)
	if err != nil || p.Addr().Is4() != via.Is4() || p.Addr().Is4In6() {
		return Route{}, c.errorf("%q: must be default or a network of the family of %s", destination, via)
	}

	return Route{To: p.Masked(), Via: via}, nil
}
