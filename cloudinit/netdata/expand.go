// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package netdata

import (
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Allocation is what a machine got for one of its interfaces.
type Allocation struct {
	// Interface is the one to set, e.g. eno101: a link's name or id, or in version 2 the
	// key, set-name or match of a device. Empty is the only one there is; where the data
	// have one of the addresses already, they are left as they are.
	Interface string
	// MAC address of the interface, if it is known. A link of OpenStack's that has none
	// gets it; one that has another is an error.
	MAC string
	// Addresses with the prefix lengths of their subnets.
	Addresses []netip.Prefix
}

// Errors about the interface of an allocation.
var (
	// ErrNoInterface says that network data does not have it.
	ErrNoInterface = errors.New("no such interface")
	// ErrSeveralInterfaces says that it has to be named.
	ErrSeveralInterfaces = errors.New("several interfaces")
)

// Expand puts the addresses of an allocation into network data that a user wrote, and
// leaves everything else as it was: other keys and values, their order, and in YAML the
// comments. Doing it again changes nothing.
//
// OpenStack's data is given back as JSON, for that is what a config drive holds. An
// address goes into the first network of its family at the interface that has none, with
// its netmask; where there is no such network it makes one. The link gets the interface's
// name where it has none, because afterburn goes by it. Version 2 is given back as it
// came, JSON or YAML.
func Expand(data []byte, a Allocation) ([]byte, Format, error) {
	if err := a.validate(); err != nil {
		return nil, "", err
	}

	root, isJSON, err := decode(data)
	if err != nil {
		return nil, "", err
	}

	format, at, err := formatOf(root)
	if err != nil {
		return nil, "", err
	}

	if err := a.put(at, format); err != nil {
		return nil, "", err
	}

	write := encodeYAML
	if format == OpenStack || isJSON {
		write = encodeJSON
	}

	out, err := write(root)

	return out, format, err
}

// put adds the addresses to a tree.
func (a *Allocation) put(root cursor, format Format) error {
	if a.Interface == "" && len(a.Addresses) > 0 {
		name, err := choose(root, format, a)
		if err != nil {
			return err
		}

		a.Interface = name
	}

	switch {
	case a.Interface == "":
		return nil
	case format == OpenStack:
		return expandOpenStack(root, a)
	default:
		return expandV2(root, a)
	}
}

func (a *Allocation) validate() error {
	if a.MAC != "" {
		mac, err := parseMAC(a.MAC)
		if err != nil {
			return fmt.Errorf("expand network data: %w", err)
		}

		a.MAC = mac
	}

	for _, p := range a.Addresses {
		if err := checkPrefix(p); err != nil {
			return fmt.Errorf("expand network data: address %w", err)
		}
	}

	return nil
}

func (a *Allocation) missing(at cursor, has []string) error {
	return at.wrap(fmt.Errorf("%w: %q, it has %s", ErrNoInterface, a.Interface, strings.Join(has, ", ")))
}

func expandOpenStack(root cursor, a *Allocation) error {
	link, err := osLinkOf(root, a)
	if err != nil {
		return err
	}

	id, err := link.get("id").text()
	if err != nil {
		return err
	}

	if !link.get("name").present() {
		if err := checkName(a.Interface); err != nil {
			return link.wrap(err)
		}

		set(link.node, "name", text(a.Interface))
	}

	if err := a.setMAC(link); err != nil {
		return err
	}

	for _, key := range []string{keyNetworks, keyServices} { // the schema wants both
		if !root.get(key).present() {
			set(root.node, key, list())
		}
	}

	for _, p := range a.Addresses {
		if err := osAddAddress(root.get(keyNetworks), id, p); err != nil {
			return err
		}
	}

	return nil
}

// osLinkOf finds the interface's link: by name, else by id.
func osLinkOf(root cursor, a *Allocation) (cursor, error) {
	links, err := root.get(keyLinks).list()
	if err != nil {
		return cursor{}, err
	}

	var has []string

	for _, key := range []string{"name", "id"} {
		for _, l := range links {
			at := l.get(key)
			if !at.present() {
				continue
			}

			if at.node.Value == a.Interface {
				return l, nil
			}

			has = append(has, at.node.Value)
		}
	}

	return cursor{}, a.missing(root.get(keyLinks), has)
}

// setMAC gives a link the interface's MAC address.
func (a *Allocation) setMAC(link cursor) error {
	if a.MAC == "" {
		return nil
	}

	key := "ethernet_mac_address"
	if kind := link.get("type"); kind.present() && kind.node.Value == typeVLAN {
		key = "vlan_mac_address"
	}

	at := link.get(key)
	if !at.present() {
		set(link.node, key, text(a.MAC))

		return nil
	}

	mac, err := at.mac()
	if err != nil {
		return err
	}

	if mac != a.MAC {
		return at.errorf("%s: the machine's is %s: leave it out", mac, a.MAC)
	}

	return nil
}

// osAddAddress puts an address on a link.
func osAddAddress(networks cursor, link string, p netip.Prefix) error {
	items, err := networks.list()
	if err != nil {
		return err
	}

	kind := typeIPv4
	if p.Addr().Is6() {
		kind = typeIPv6
	}

	var free *cursor

	used := map[string]bool{}

	for _, c := range items {
		if id := c.get("id"); id.present() {
			used[id.node.Value] = true
		}

		if c.get("link").value() != link || c.get("type").value() != kind {
			continue
		}

		if !c.get("ip_address").present() {
			if free == nil {
				free = &c
			}

			continue
		}

		there, err := osAddress(c, kind == typeIPv6)
		if err != nil {
			return err
		}

		if there.Addr() == p.Addr() {
			return same(c, there, p)
		}
	}

	if free != nil {
		return osSetAddress(*free, p)
	}

	id := ""
	for i := 0; id == "" || used[id]; i++ {
		id = fmt.Sprintf("network%d", i)
	}

	m := newNetwork(id, kind, link)
	add(m, "ip_address", text(p.Addr().String()))
	add(m, "netmask", text(maskOf(p)))
	networks.node.Content = append(networks.node.Content, m)

	return nil
}

// osSetAddress completes a network that has no address.
func osSetAddress(c cursor, p netip.Prefix) error {
	if at := c.get("netmask"); at.present() {
		bits, err := maskBits(at.node.Value, p.Addr())
		if err != nil {
			return at.wrap(err)
		}

		if err := same(at, netip.PrefixFrom(p.Addr(), bits), p); err != nil {
			return err
		}
	} else {
		set(c.node, "netmask", text(maskOf(p)))
	}

	set(c.node, "ip_address", text(p.Addr().String()))

	return nil
}

// same refuses another prefix length than the one allocated.
func same(at cursor, there, p netip.Prefix) error {
	if there != p {
		return at.errorf("the prefix length is %d here and %d for the pool: make them the same, or leave it out here",
			there.Bits(), p.Bits())
	}

	return nil
}

// value is a single value, empty if there is none.
func (c cursor) value() string {
	if c.node == nil || c.node.Kind != yaml.ScalarNode {
		return ""
	}

	return c.node.Value
}

func expandV2(root cursor, a *Allocation) error {
	entry, err := v2LinkOf(root, a)
	if err != nil {
		return err
	}

	if at := entry.get("match").get("macaddress"); at.present() && a.MAC != "" {
		mac, err := at.mac()
		if err != nil {
			return err
		}

		if mac != a.MAC {
			return at.errorf("%s: the machine's is %s: leave it out", mac, a.MAC)
		}
	}

	addresses := entry.get("addresses")
	if !addresses.present() && len(a.Addresses) > 0 {
		set(entry.node, "addresses", list())

		addresses = entry.get("addresses")
	}

	for _, p := range a.Addresses {
		if err := v2AddAddress(addresses, p); err != nil {
			return err
		}
	}

	return nil
}

func v2AddAddress(addresses cursor, p netip.Prefix) error {
	items, err := addresses.list()
	if err != nil {
		return err
	}

	for _, c := range items {
		there, err := c.v2Address()
		if err != nil {
			return err
		}

		if there.Addr() == p.Addr() {
			return same(c, there, p)
		}
	}

	addresses.node.Content = append(addresses.node.Content, text(p.String()))

	return nil
}

// v2LinkOf finds the interface's entry: by key or set-name, else by a match of its name,
// which may be a pattern.
func v2LinkOf(root cursor, a *Allocation) (cursor, error) {
	var (
		has     []string
		matched *cursor
	)

	for _, section := range v2Sections() {
		names, entries, err := root.get(section).entries()
		if err != nil {
			return cursor{}, err
		}

		for i, c := range entries {
			if c.present() && c.node.Kind != yaml.MappingNode {
				return cursor{}, c.errorf("must be a mapping (key: value)")
			}

			if c.get("set-name").value() == a.Interface || names[i] == a.Interface && !c.get("set-name").present() {
				if !c.present() { // a name and nothing else
					set(root.get(section).node, names[i], mapping())
				}

				return root.get(section).get(names[i]), nil
			}

			if ok, err := path.Match(c.get("match").get("name").value(), a.Interface); err == nil && ok && matched == nil {
				matched = &c
			}

			has = append(has, names[i])
		}
	}

	if matched != nil {
		return *matched, nil
	}

	return cursor{}, a.missing(root, slices.Clip(has))
}
