// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package netdata

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// Network is all that one machine is told of its network.
type Network struct {
	Links []Link
	// DNS holds for the whole machine: neither format is the better for settings that
	// differ by link, and OpenStack's has no words for them.
	DNS DNS
}

// DNS is how a machine resolves names.
type DNS struct {
	Servers []netip.Addr
	Search  []string
}

// Link is one interface: an Ethernet device, or a VLAN or a bond on others.
type Link struct {
	// ID is what VLANs, bonds and networks call the link by. In version 2 it is the key of
	// the mapping, which for a VLAN or a bond is the interface's name as well.
	ID string
	// Name of the interface in the machine, e.g. eno101. Empty leaves it to the machine.
	Name string
	// MAC address as 52:54:00:12:34:56, in lower case. Empty matches by name.
	MAC string
	// MTU in bytes; zero leaves it to the machine.
	MTU  int
	VLAN *VLAN
	Bond *Bond
	// DHCP4, DHCP6 and SLAAC ask for addresses by DHCP and by router advertisements.
	DHCP4, DHCP6, SLAAC bool
	// NoDHCP turns DHCP off in so many words, against other files that the machine may have.
	// OpenStack's format needs none for it: a link asks for what is written, and no more.
	NoDHCP bool
	// Options of DHCP4; nil leaves them to the machine. OpenStack's format has no words for
	// them.
	Options *DHCPOptions
	// Addresses are fixed ones, each with the prefix length of its subnet.
	Addresses []netip.Prefix
	// Routes go by this link. The gateway is the route to 0.0.0.0/0 or ::/0.
	Routes []Route
}

// DHCPOptions are what a machine tells a DHCP server, and takes from it. What is nil or
// empty is left to the machine.
type DHCPOptions struct {
	// Identifier is the client identifier, one of IdentifierMAC and IdentifierDUID.
	Identifier string
	// SendHostname sends the host name: Hostname, else the machine's own.
	SendHostname *bool
	Hostname     string
	// UseDNS and UseRoutes take the server's name servers and routes.
	UseDNS, UseRoutes *bool
}

// Client identifiers by netplan's names.
const (
	IdentifierMAC  = "mac"
	IdentifierDUID = "duid"
)

// VLAN makes a link a VLAN on another link.
type VLAN struct {
	ID int
	// Link is the ID of the link below.
	Link string
}

// Bond makes a link a bond of others.
type Bond struct {
	// Mode is one of BondModes.
	Mode string
	// Links are the IDs of its members.
	Links []string
}

// BondModes are the modes that both formats know.
func BondModes() []string {
	return []string{"802.3ad", "balance-rr", "active-backup", "balance-xor", "broadcast", "balance-tlb", "balance-alb"}
}

// Route is one way out.
type Route struct {
	// To is the destination, with all bits after its length zero.
	To  netip.Prefix
	Via netip.Addr
}

// Default is the route that leads everywhere in the gateway's family.
func Default(gateway netip.Addr) Route {
	if gateway.Is4() {
		return Route{To: netip.PrefixFrom(netip.IPv4Unspecified(), 0), Via: gateway}
	}

	return Route{To: netip.PrefixFrom(netip.IPv6Unspecified(), 0), Via: gateway}
}

// Bounds of values.
const (
	maxMTU       = 65535
	maxVLAN      = 4094
	maxInterface = 15 // IFNAMSIZ without its end
)

// Validate tells what no format could say, by the link's name.
func (n *Network) Validate() error {
	seen := map[string]bool{}

	for i := range n.Links {
		l := &n.Links[i]

		if l.ID == "" {
			return fmt.Errorf("links[%d]: has no id", i)
		}

		if seen[l.ID] {
			return fmt.Errorf("link %q: is there twice", l.ID)
		}

		seen[l.ID] = true

		if err := l.validate(); err != nil {
			return fmt.Errorf("link %q: %w", l.ID, err)
		}
	}

	if err := n.references(); err != nil {
		return err
	}

	return n.DNS.validate()
}

func (d *DNS) validate() error {
	for i, s := range d.Servers {
		if err := checkAddr(s); err != nil {
			return fmt.Errorf("name server %w", err)
		}

		if slices.Contains(d.Servers[:i], s) {
			return fmt.Errorf("name server %s: is there twice", s)
		}
	}

	for i, s := range d.Search {
		if s == "" || strings.ContainsAny(s, " \t\r\n,") || slices.Contains(d.Search[:i], s) {
			return fmt.Errorf("search domain %q: must be one domain name, and not be there twice", s)
		}
	}

	return nil
}

// references checks what links say of each other.
func (n *Network) references() error {
	byID := map[string]*Link{}
	for i := range n.Links {
		byID[n.Links[i].ID] = &n.Links[i]
	}

	for i := range n.Links {
		l := &n.Links[i]
		for _, below := range l.below() {
			if byID[below] == nil {
				return fmt.Errorf("link %q: is on link %q, which is not there", l.ID, below)
			}
		}
	}

	// What is on itself, by whatever way, is never built.
	for len(byID) > 0 {
		var built []string

		for id, l := range byID {
			if !slices.ContainsFunc(l.below(), func(below string) bool { return byID[below] != nil }) {
				built = append(built, id)
			}
		}

		if len(built) == 0 {
			return fmt.Errorf("link %q: is on itself", slices.Min(slices.Collect(maps.Keys(byID))))
		}

		for _, id := range built {
			delete(byID, id)
		}
	}

	return nil
}

// below are the links that this one is on.
func (l *Link) below() []string {
	switch {
	case l.VLAN != nil:
		return []string{l.VLAN.Link}
	case l.Bond != nil:
		return l.Bond.Links
	default:
		return nil
	}
}

func (l *Link) validate() error {
	if l.Name != "" {
		if err := checkName(l.Name); err != nil {
			return err
		}
	}

	if l.MAC != "" {
		if mac, err := parseMAC(l.MAC); err != nil || mac != l.MAC {
			return fmt.Errorf("MAC address %q: must be as 52:54:00:12:34:56, in lower case", l.MAC)
		}
	}

	if l.MTU < 0 || l.MTU > maxMTU {
		return fmt.Errorf("MTU %d: must be 1 to %d", l.MTU, maxMTU)
	}

	if err := errors.Join(l.kind(), l.dhcp()); err != nil {
		return err
	}

	for i, a := range l.Addresses {
		if err := checkPrefix(a); err != nil {
			return fmt.Errorf("address %w", err)
		}

		if slices.ContainsFunc(l.Addresses[:i], func(b netip.Prefix) bool { return a.Addr() == b.Addr() }) {
			return fmt.Errorf("address %s: is there twice", a.Addr())
		}
	}

	return l.routes()
}

func (l *Link) kind() error {
	switch {
	case l.VLAN != nil && l.Bond != nil:
		return errors.New("is a VLAN and a bond: must be one of them")
	case l.VLAN != nil && (l.VLAN.ID < 0 || l.VLAN.ID > maxVLAN):
		return fmt.Errorf("VLAN %d: must be 0 to %d", l.VLAN.ID, maxVLAN)
	case l.Bond != nil && !slices.Contains(BondModes(), l.Bond.Mode):
		return fmt.Errorf("bond mode %q: must be one of %s", l.Bond.Mode, strings.Join(BondModes(), ", "))
	default:
		return nil
	}
}

func (l *Link) dhcp() error {
	switch {
	case l.NoDHCP && (l.DHCP4 || l.DHCP6):
		return errors.New("asks for DHCP, and has it off")
	case l.Options == nil:
		return nil
	case !l.DHCP4:
		return errors.New("has options of DHCP, and does not ask for it over IPv4")
	case !slices.Contains([]string{"", IdentifierMAC, IdentifierDUID}, l.Options.Identifier):
		return fmt.Errorf("DHCP client identifier %q: must be %s or %s", l.Options.Identifier, IdentifierMAC, IdentifierDUID)
	default:
		return nil
	}
}

func (l *Link) routes() error {
	for i, r := range l.Routes {
		switch {
		case !r.To.IsValid() || r.To.Masked() != r.To || r.To.Addr().Is4In6():
			return fmt.Errorf("route to %s: is not a network: bits after its length must be zero", r.To)
		case checkAddr(r.Via) != nil || r.Via.Is4() != r.To.Addr().Is4():
			return fmt.Errorf("route to %s: the gateway %s is not an address of its family", r.To, r.Via)
		case slices.Contains(l.Routes[:i], r):
			return fmt.Errorf("route to %s by %s: is there twice", r.To, r.Via)
		}
	}

	return nil
}

// checkName refuses what the kernel takes for no interface's name.
func checkName(name string) error {
	bad := func(r rune) bool { return r <= ' ' || r == '/' || r == ':' || r == 0x7f }
	if name == "" || len(name) > maxInterface || name == "." || name == ".." || strings.ContainsFunc(name, bad) {
		return fmt.Errorf("interface name %q: must have 1 to %d characters, without blanks, slashes and colons", name, maxInterface)
	}

	return nil
}

func checkAddr(a netip.Addr) error {
	if !a.IsValid() || a.Zone() != "" || a.Is4In6() || a.IsUnspecified() || a.IsMulticast() {
		return fmt.Errorf("%s: is not the address of one machine", a)
	}

	return nil
}

func checkPrefix(p netip.Prefix) error {
	if !p.IsValid() || p.Bits() == 0 {
		return fmt.Errorf("%s: needs the prefix length of its subnet, as 10.0.0.5/24", p)
	}

	return checkAddr(p.Addr())
}

// parseMAC reads a MAC address of Ethernet into its plain form.
func parseMAC(text string) (string, error) {
	mac, err := net.ParseMAC(text)
	if err != nil || len(mac) != 6 {
		return "", fmt.Errorf("%q is not a MAC address such as 52:54:00:12:34:56", text)
	}

	return mac.String(), nil
}
