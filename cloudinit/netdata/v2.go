// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package netdata

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Sections of network-config version 2 whose entries are links of the model.
const (
	sectionEthernets = "ethernets"
	sectionBonds     = "bonds"
	sectionVLANs     = "vlans"
)

// V2 writes cloud-init's network-config of version 2, for NoCloud. Links come in the
// order ethernets, bonds, vlans. A VLAN or a bond is called by its name if it has one. A
// gateway outside of every subnet of its link is reached on the link.
//
// Default routes are written as 0.0.0.0/0 and ::/0: afterburn cannot read the word
// default.
func (n *Network) V2() ([]byte, error) {
	if err := n.Validate(); err != nil {
		return nil, fmt.Errorf("write network-config: %w", err)
	}

	sections := map[string]*yaml.Node{}
	names := map[string]string{}

	for i := range n.Links {
		names[n.Links[i].ID] = n.Links[i].key()
	}

	for i := range n.Links {
		l := &n.Links[i]
		if sections[l.section()] == nil {
			sections[l.section()] = mapping()
		}

		if lookup(sections[l.section()], l.key()) != nil {
			return nil, fmt.Errorf("write network-config: two links are called %q", l.key())
		}

		add(sections[l.section()], l.key(), l.v2(names))
	}

	if err := n.v2DNS(sections); err != nil {
		return nil, err
	}

	root := mapping()
	add(root, "version", number(2))

	for _, s := range []string{sectionEthernets, sectionBonds, sectionVLANs} {
		if sections[s] != nil {
			add(root, s, sections[s])
		}
	}

	return encodeYAML(root)
}

// key is what version 2 calls the link.
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

// configured says whether the link has anything to do with IP.
func (l *Link) configured() bool {
	return l.DHCP4 || l.DHCP6 || l.NoDHCP || l.SLAAC || len(l.Addresses)+len(l.Routes) > 0
}

// v2DNS puts the name servers on each link that has to do with IP.
func (n *Network) v2DNS(sections map[string]*yaml.Node) error {
	if len(n.DNS.Servers)+len(n.DNS.Search) == 0 {
		return nil
	}

	written := false

	for i := range n.Links {
		l := &n.Links[i]
		if !l.configured() {
			continue
		}

		ns := mapping()

		if len(n.DNS.Search) > 0 {
			domains := list()
			for _, d := range n.DNS.Search {
				domains.Content = append(domains.Content, text(d))
			}

			add(ns, "search", domains)
		}

		if len(n.DNS.Servers) > 0 {
			add(ns, "addresses", texts(n.DNS.Servers))
		}

		add(lookup(sections[l.section()], l.key()), "nameservers", ns)

		written = true
	}

	if !written {
		return errors.New("write network-config: name servers need a link with an address, DHCP or a route")
	}

	return nil
}

// v2 is a link's entry. Names are the keys of links by their IDs.
func (l *Link) v2(names map[string]string) *yaml.Node {
	m := mapping()

	switch {
	case l.VLAN != nil:
		add(m, "id", number(l.VLAN.ID))
		add(m, "link", text(names[l.VLAN.Link]))
	case l.Bond != nil:
		members, parameters := list(), mapping()
		for _, id := range l.Bond.Links {
			members.Content = append(members.Content, text(names[id]))
		}

		add(parameters, "mode", text(l.Bond.Mode))
		add(m, "interfaces", members)
		add(m, "parameters", parameters)
	default:
		l.v2Match(m)
	}

	if l.section() != sectionEthernets && l.MAC != "" {
		add(m, "macaddress", text(l.MAC))
	}

	if l.MTU != 0 {
		add(m, "mtu", number(l.MTU))
	}

	l.v2DHCP(m)

	if len(l.Addresses) > 0 {
		add(m, "addresses", texts(l.Addresses))
	}

	if len(l.Routes) > 0 {
		add(m, "routes", l.v2Routes())
	}

	return m
}

// v2DHCP says by which ways the link asks for addresses.
func (l *Link) v2DHCP(m *yaml.Node) {
	if l.NoDHCP {
		add(m, "dhcp4", boolean(false))
		add(m, "dhcp6", boolean(false))
	}

	for _, f := range []struct {
		key string
		on  bool
	}{{"dhcp4", l.DHCP4}, {"dhcp6", l.DHCP6}, {"accept-ra", l.SLAAC}} {
		if f.on {
			add(m, f.key, boolean(true))
		}
	}

	o := l.Options
	if o == nil {
		return
	}

	if o.Identifier != "" {
		add(m, "dhcp-identifier", text(o.Identifier))
	}

	overrides := mapping()
	optional := func(key string, value *bool) {
		if value != nil {
			add(overrides, key, boolean(*value))
		}
	}

	optional("send-hostname", o.SendHostname)

	if o.Hostname != "" {
		add(overrides, "hostname", text(o.Hostname))
	}

	optional("use-dns", o.UseDNS)
	optional("use-routes", o.UseRoutes)

	if len(overrides.Content) > 0 {
		add(m, "dhcp4-overrides", overrides)
	}
}

// v2Match says which device an Ethernet link is.
func (l *Link) v2Match(m *yaml.Node) {
	match := mapping()

	switch {
	case l.MAC != "":
		add(match, "macaddress", text(l.MAC))
	case l.Name != "" && l.Name != l.ID:
		add(match, "name", text(l.Name))
	default:
		return
	}

	add(m, "match", match)

	if l.MAC != "" && l.Name != "" {
		add(m, "set-name", text(l.Name))
	}
}

func (l *Link) v2Routes() *yaml.Node {
	out := list()

	for _, r := range l.Routes {
		m := mapping()
		add(m, "to", text(r.To.String()))
		add(m, "via", text(r.Via.String()))

		if l.outside(r.Via) {
			add(m, "on-link", boolean(true))
		}

		out.Content = append(out.Content, m)
	}

	return out
}

// outside says whether a gateway is in none of the link's subnets of its family, if the
// link has any.
func (l *Link) outside(gateway netip.Addr) bool {
	outside := false

	for _, a := range l.Addresses {
		if a.Addr().Is4() == gateway.Is4() {
			if a.Masked().Contains(gateway) {
				return false
			}

			outside = true
		}
	}

	return outside && !gateway.IsLinkLocalUnicast()
}

// parseV2 reads network-config of version 2.
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

// notInModel are sections whose links the model has no words for; Expand keeps them.
func notInModel() []string {
	return []string{"bridges", "wifis", "modems", "tunnels", "vrfs", "dummy-devices", "virtual-ethernets", "nm-devices"}
}

func parseV2Link(c cursor, section string, l *Link, dns *DNS) error {
	if c.present() && c.node.Kind != yaml.MappingNode {
		return c.errorf("must be a mapping (key: value)")
	}

	var err error

	switch section {
	case sectionVLANs:
		l.VLAN, l.Name = &VLAN{}, l.ID
		l.VLAN.ID, err = c.get("id").integer(0, maxVLAN)

		if err == nil {
			l.VLAN.Link, err = c.get("link").text()
		}
	case sectionBonds:
		l.Bond, l.Name = &Bond{Mode: "balance-rr"}, l.ID // the kernel's default

		if mode := c.get("parameters").get("mode"); mode.present() {
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
	if !match.present() {
		l.Name = l.ID // as netplan has it

		return nil
	}

	return parseCommon(match, "name", "macaddress", l)
}

func parseV2IP(c cursor, l *Link) error {
	if err := parseV2DHCP(c, l); err != nil {
		return err
	}

	addresses, err := c.get("addresses").list()
	if err != nil {
		return err
	}

	for _, at := range addresses {
		p, err := at.v2Address()
		if err != nil {
			return err
		}

		l.Addresses = append(l.Addresses, p)
	}

	routes, err := c.get("routes").list()
	if err != nil {
		return err
	}

	for _, at := range routes {
		r, err := v2Route(at)
		if err != nil {
			return err
		}

		l.Routes = append(l.Routes, r)
	}

	for _, key := range []string{"gateway4", "gateway6"} {
		if at := c.get(key); at.present() {
			gateway, err := at.addr()
			if err != nil {
				return err
			}

			if gateway.Is4() != (key == "gateway4") {
				return at.errorf("%s: is of the other family", gateway)
			}

			l.Routes = append(l.Routes, Default(gateway))
		}
	}

	return nil
}

func parseV2DHCP(c cursor, l *Link) error {
	var err error

	for key, to := range map[string]*bool{"dhcp4": &l.DHCP4, "dhcp6": &l.DHCP6, "accept-ra": &l.SLAAC} {
		if *to, err = c.get(key).boolean(); err != nil {
			return err
		}
	}

	l.NoDHCP = c.get("dhcp4").present() && c.get("dhcp6").present() && !l.DHCP4 && !l.DHCP6

	if !l.DHCP4 {
		return nil // whatever its options are, nobody is told of them
	}

	options, overrides := DHCPOptions{}, c.get("dhcp4-overrides")

	if at := c.get("dhcp-identifier"); at.present() {
		if options.Identifier, err = at.text(); err != nil {
			return err
		}
	}

	if at := overrides.get("hostname"); at.present() {
		if options.Hostname, err = at.text(); err != nil {
			return err
		}
	}

	for key, to := range map[string]**bool{
		"send-hostname": &options.SendHostname, "use-dns": &options.UseDNS, "use-routes": &options.UseRoutes,
	} {
		if at := overrides.get(key); at.present() {
			value, err := at.boolean()
			if err != nil {
				return err
			}

			*to = &value
		}
	}

	if options != (DHCPOptions{}) {
		l.Options = &options
	}

	return nil
}

// v2Address reads an address with its length. Netplan allows options below it.
func (c cursor) v2Address() (netip.Prefix, error) {
	s := c.node.Value
	if c.node.Kind == yaml.MappingNode && len(c.node.Content) == 2 {
		s = c.node.Content[0].Value
	}

	p, err := netip.ParsePrefix(s)
	if err != nil || checkPrefix(p) != nil {
		return p, c.errorf("%q: must be an address with its prefix length, as 10.0.0.5/24", s)
	}

	return p, nil
}

func v2Route(c cursor) (Route, error) {
	to, err := c.get("to").text()
	if err != nil {
		return Route{}, err
	}

	via, err := c.get("via").addr()
	if err != nil {
		return Route{}, err
	}

	if to == "default" {
		return Default(via), nil
	}

	if !strings.Contains(to, "/") { // one machine, as netplan has it
		if a, err := netip.ParseAddr(to); err == nil {
			to = netip.PrefixFrom(a, a.BitLen()).String()
		}
	}

	p, err := netip.ParsePrefix(to)
	if err != nil || p.Addr().Is4() != via.Is4() || p.Addr().Is4In6() {
		return Route{}, c.errorf("%q: must be default or a network of the family of %s", to, via)
	}

	return Route{To: p.Masked(), Via: via}, nil
}
