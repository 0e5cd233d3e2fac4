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

// Network is the complete network configuration of one machine.
type Network struct {
	Links []Link
	// DNS applies to the whole machine. The model has no DNS settings for a single link, because OpenStack's
	// format cannot express them.
	DNS DNS
}

// DNS contains the name servers and search domains of a machine.
type DNS struct {
	Servers []netip.Addr
	Search  []string
}

// Link is one interface: an Ethernet device, a VLAN on another link, or a bond of other links.
type Link struct {
	// ID is the name by which VLANs, bonds and networks refer to the link. In version 2, it is the key of the
	// link. For a VLAN or a bond, the key is also the name of the interface.
	ID string
	// Name is the name of the interface in the machine, e.g. eno101. If it is empty, the machine chooses the
	// name.
	Name string
	// MAC is the MAC address in lower case, e.g. 52:54:00:12:34:56. If it is empty, the device is matched by
	// name.
	MAC string
	// MTU is in bytes. If it is zero, the machine chooses the MTU.
	MTU  int
	VLAN *VLAN
	Bond *Bond
	// DHCP4 and DHCP6 request addresses by DHCP. SLAAC configures addresses from router advertisements.
	DHCP4, DHCP6, SLAAC bool
	// NoDHCP disables DHCP explicitly, because other files in the machine could enable it. OpenStack's format
	// has no key for this, because its links only use the listed methods.
	NoDHCP bool
	// Options are the options of DHCP4. If they are nil, the machine chooses them. OpenStack's format does
	// not support them.
	Options *DHCPOptions
	// Addresses are static addresses, each with the prefix length of its subnet.
	Addresses []netip.Prefix
	// Routes are the routes over this link. The default gateway is the route to 0.0.0.0/0 or ::/0.
	Routes []Route
}

// DHCPOptions say what a machine sends to a DHCP server, and what it accepts from it. The machine chooses
// each option that is nil or empty.
type DHCPOptions struct {
	// Identifier is the client identifier: IdentifierMAC or IdentifierDUID.
	Identifier string
	// SendHostname says whether to send the host name: Hostname, or else the machine's own.
	SendHostname *bool
	Hostname     string
	// UseDNS and UseRoutes say whether to use the name servers and the routes from the server.
	UseDNS, UseRoutes *bool
}

// Client identifiers. netplan defines the names.
const (
	IdentifierMAC  = "mac"
	IdentifierDUID = "duid"
)

// VLAN describes a link that is a VLAN on another link.
type VLAN struct {
	ID int
	// Link is the ID of the lower link.
	Link string
}

// Bond describes a link that is a bond of other links.
type Bond struct {
	// Mode is one of BondModes.
	Mode string
	// Links are the IDs of the members.
	Links []string
}

// BondModes returns the modes that both formats support.
func BondModes() []string {
	return []string{"802.3ad", "balance-rr", "active-backup", "balance-xor", "broadcast", "balance-tlb", "balance-alb"}
}

// Route is one route.
type Route struct {
	// To is the destination. All bits after its prefix length must be zero.
	To  netip.Prefix
	Via netip.Addr
}

// DefaultRoute returns the default route of the gateway's address family.
func DefaultRoute(gateway netip.Addr) Route {
	if gateway.Is4() {
		return Route{To: netip.PrefixFrom(netip.IPv4Unspecified(), 0), Via: gateway}
	}

	return Route{To: netip.PrefixFrom(netip.IPv6Unspecified(), 0), Via: gateway}
}

// Limits of values.
const (
	maxMTU       = 65535
	maxVLAN      = 4094
	maxInterface = 15 // IFNAMSIZ without the terminating zero byte
)

// Validate returns an error if neither format can express the configuration. The error names the link.
func (n *Network) Validate() error {
	seen := map[string]bool{}

	for i := range n.Links {
		l := &n.Links[i]

		if l.ID == "" {
			return fmt.Errorf("links[%d]: has no id", i)
		}

		if seen[l.ID] {
			return fmt.Errorf("link %q: occurs twice", l.ID)
		}

		seen[l.ID] = true

		if err := l.validate(); err != nil {
			return fmt.Errorf("link %q: %w", l.ID, err)
		}
	}

	if err := n.validateReferences(); err != nil {
		return err
	}

	return n.DNS.validate()
}

func (d *DNS) validate() error {
	for i, s := range d.Servers {
		if err := validateAddr(s); err != nil {
			return fmt.Errorf("name server %w", err)
		}

		if slices.Contains(d.Servers[:i], s) {
			return fmt.Errorf("name server %s: occurs twice", s)
		}
	}

	for i, s := range d.Search {
		if s == "" || strings.ContainsAny(s, " \t\r\n,") || slices.Contains(d.Search[:i], s) {
			return fmt.Errorf("search domain %q: must be one domain name and occur only once", s)
		}
	}

	return nil
}

// validateReferences checks the references between links. Each link must exist, and there must be no cycles.
func (n *Network) validateReferences() error {
	byID := map[string]*Link{}
	for i := range n.Links {
		byID[n.Links[i].ID] = &n.Links[i]
	}

	for i := range n.Links {
		l := &n.Links[i]
		for _, lower := range l.lowerLinks() {
			if byID[lower] == nil {
				return fmt.Errorf("link %q: uses link %q, which does not exist", l.ID, lower)
			}
		}
	}

	// Remove the links that use no remaining link until none is left. Links in a cycle can never be removed.
	for len(byID) > 0 {
		var removable []string

		for id, l := range byID {
			if !slices.ContainsFunc(l.lowerLinks(), func(lower string) bool { return byID[lower] != nil }) {
				removable = append(removable, id)
			}
		}

		if len(removable) == 0 {
			return fmt.Errorf("link %q: uses itself", slices.Min(slices.Collect(maps.Keys(byID))))
		}

		for _, id := range removable {
			delete(byID, id)
		}
	}

	return nil
}

// lowerLinks returns the IDs of the links that this link uses.
func (l *Link) lowerLinks() []string {
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
		if err := validateName(l.Name); err != nil {
			return err
		}
	}

	if l.MAC != "" {
		if mac, err := parseMAC(l.MAC); err != nil || mac != l.MAC {
			return fmt.Errorf("MAC address %q: must be in lower case, such as 52:54:00:12:34:56", l.MAC)
		}
	}

	if l.MTU < 0 || l.MTU > maxMTU {
		return fmt.Errorf("MTU %d: must be 1 to %d", l.MTU, maxMTU)
	}

	if err := errors.Join(l.validateKind(), l.validateDHCP()); err != nil {
		return err
	}

	for i, a := range l.Addresses {
		if err := validatePrefix(a); err != nil {
			return fmt.Errorf("address %w", err)
		}

		if slices.ContainsFunc(l.Addresses[:i], func(b netip.Prefix) bool { return a.Addr() == b.Addr() }) {
			return fmt.Errorf("address %s: occurs twice", a.Addr())
		}
	}

	return l.validateRoutes()
}

func (l *Link) validateKind() error {
	switch {
	case l.VLAN != nil && l.Bond != nil:
		return errors.New("is both a VLAN and a bond: must be only one of them")
	case l.VLAN != nil && (l.VLAN.ID < 0 || l.VLAN.ID > maxVLAN):
		return fmt.Errorf("VLAN %d: must be 0 to %d", l.VLAN.ID, maxVLAN)
	case l.Bond != nil && !slices.Contains(BondModes(), l.Bond.Mode):
		return fmt.Errorf("bond mode %q: must be one of %s", l.Bond.Mode, strings.Join(BondModes(), ", "))
	default:
		return nil
	}
}

func (l *Link) validateDHCP() error {
	switch {
	case l.NoDHCP && (l.DHCP4 || l.DHCP6):
		return errors.New("both enables and disables DHCP")
	case l.Options == nil:
		return nil
	case !l.DHCP4:
		return errors.New("has DHCP options, but does not enable DHCP over IPv4")
	case !slices.Contains([]string{"", IdentifierMAC, IdentifierDUID}, l.Options.Identifier):
		return fmt.Errorf("DHCP client identifier %q: must be %s or %s", l.Options.Identifier, IdentifierMAC, IdentifierDUID)
	default:
		return nil
	}
}

func (l *Link) validateRoutes() error {
	for i, r := range l.Routes {
		switch {
		case !r.To.IsValid() || r.To.Masked() != r.To || r.To.Addr().Is4In6():
			return fmt.Errorf("route to %s: is not a network: all bits after its prefix length must be zero", r.To)
		case validateAddr(r.Via) != nil || r.Via.Is4() != r.To.Addr().Is4():
			return fmt.Errorf("route to %s: the gateway %s is not an address of the same family", r.To, r.Via)
		case slices.Contains(l.Routes[:i], r):
			return fmt.Errorf("route to %s via %s: occurs twice", r.To, r.Via)
		}
	}

	return nil
}

// validateName returns an error if the kernel does not accept the name of an interface.
func validateName(name string) error {
	isForbidden := func(r rune) bool { return r <= ' ' || r == '/' || r == ':' || r == 0x7f }
	if name == "" || len(name) > maxInterface || name == "." || name == ".." || strings.ContainsFunc(name, isForbidden) {
		return fmt.Errorf("interface name %q: must have 1 to %d characters, without blanks, slashes and colons", name, maxInterface)
	}

	return nil
}

func validateAddr(a netip.Addr) error {
	if !a.IsValid() || a.Zone() != "" || a.Is4In6() || a.IsUnspecified() || a.IsMulticast() {
		return fmt.Errorf("%s: is not the address of one machine", a)
	}

	return nil
}

func validatePrefix(p netip.Prefix) error {
	if !p.IsValid() || p.Bits() == 0 {
		return fmt.Errorf("%s: needs the prefix length of its subnet, such as 10.0.0.5/24", p)
	}

	return validateAddr(p.Addr())
}

// parseMAC parses an Ethernet MAC address and returns it in lower case with colons.
func parseMAC(text string) (string, error) {
	mac, err := net.ParseMAC(text)
	if err != nil || len(mac) != 6 {
		return "", fmt.Errorf("%q is not a MAC address such as 52:54:00:12:34:56", text)
	}

	return mac.String(), nil
}
