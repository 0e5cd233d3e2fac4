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

	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

// Allocation contains the addresses that were allocated for one interface of a machine.
type Allocation struct {
	// Interface names the interface that gets the addresses, e.g. eno101. It is the name or id of a link, or
	// in version 2 the key, set-name or match of a device. If it is empty, the data must have only one
	// interface. If it is empty and the data already contains one of the addresses, the data is not changed.
	Interface string
	// MAC is the MAC address of the interface, or empty if it is unknown. Expand adds it to an OpenStack link
	// that has none. A link with another MAC address is an error.
	MAC string
	// Addresses have the prefix lengths of their subnets.
	Addresses []netip.Prefix
}

// Errors about the interface of an allocation.
var (
	// ErrNoInterface means that the network data does not have the interface.
	ErrNoInterface = errors.New("no such interface")
	// ErrSeveralInterfaces means that the allocation must name the interface.
	ErrSeveralInterfaces = errors.New("several interfaces")
)

// Expand adds the addresses of an allocation to the network data of a user. It keeps all other keys and
// values, their order, and the comments in YAML. Expanding the result again changes nothing.
//
// For OpenStack's format, Expand returns JSON, because a config drive contains JSON. It sets an address and
// its netmask in the first network of the interface that has the same family and no address. If no such
// network exists, Expand adds one. It sets the name of a link that has none, because afterburn identifies
// interfaces by this name.
//
// For version 2, Expand returns JSON or YAML like the input.
func Expand(data []byte, a Allocation) ([]byte, Format, error) {
	if err := a.validate(); err != nil {
		return nil, "", err
	}

	root, isJSON, err := decodeTree(data)
	if err != nil {
		return nil, "", err
	}

	format, network, err := detectFormat(root)
	if err != nil {
		return nil, "", err
	}

	if err := a.applyTo(network, format); err != nil {
		return nil, "", err
	}

	var out []byte
	if format == FormatOpenStack || isJSON {
		out, err = encodeJSON(root)
	} else {
		out, err = strictyaml.Encode(root)
	}

	return out, format, err
}

// applyTo adds the addresses to network data.
func (a *Allocation) applyTo(root cursor, format Format) error {
	if a.Interface == "" && len(a.Addresses) > 0 {
		name, err := chooseInterface(root, format, a)
		if err != nil {
			return err
		}

		a.Interface = name
	}

	switch {
	case a.Interface == "":
		return nil
	case format == FormatOpenStack:
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
		if err := validatePrefix(p); err != nil {
			return fmt.Errorf("expand network data: address %w", err)
		}
	}

	return nil
}

func (a *Allocation) newMissingError(parent cursor, available []string) error {
	return parent.wrapError(fmt.Errorf("%w: %q, it has %s", ErrNoInterface, a.Interface, strings.Join(available, ", ")))
}

// expandOpenStack adds the addresses of an allocation to network_data.json. It also sets the name and the
// MAC address of the link, and the lists that the schema requires, if they are missing.
func expandOpenStack(root cursor, a *Allocation) error {
	link, err := findOSLink(root, a)
	if err != nil {
		return err
	}

	id, err := link.get("id").text()
	if err != nil {
		return err
	}

	if !link.get("name").isPresent() {
		if err := validateName(a.Interface); err != nil {
			return link.wrapError(err)
		}

		strictyaml.SetKey(link.node, "name", newText(a.Interface))
	}

	if err := a.setMAC(link); err != nil {
		return err
	}

	for _, key := range []string{keyNetworks, keyServices} { // the schema requires both
		if !root.get(key).isPresent() {
			strictyaml.SetKey(root.node, key, newList())
		}
	}

	for _, p := range a.Addresses {
		if err := addOSAddress(root.get(keyNetworks), id, p); err != nil {
			return err
		}
	}

	return nil
}

// findOSLink returns the link of the interface. It searches by name first, and then by id.
func findOSLink(root cursor, a *Allocation) (cursor, error) {
	links, err := root.get(keyLinks).items()
	if err != nil {
		return cursor{}, err
	}

	var available []string

	for _, key := range []string{"name", "id"} {
		for _, l := range links {
			name := l.get(key)
			if !name.isPresent() {
				continue
			}

			if name.node.Value == a.Interface {
				return l, nil
			}

			available = append(available, name.node.Value)
		}
	}

	return cursor{}, a.newMissingError(root.get(keyLinks), available)
}

// setMAC sets the MAC address of a link. It returns an error if the link has another MAC address.
func (a *Allocation) setMAC(link cursor) error {
	if a.MAC == "" {
		return nil
	}

	key := "ethernet_mac_address"
	if kind := link.get("type"); kind.isPresent() && kind.node.Value == typeVLAN {
		key = "vlan_mac_address"
	}

	field := link.get(key)
	if !field.isPresent() {
		strictyaml.SetKey(link.node, key, newText(a.MAC))

		return nil
	}

	mac, err := field.mac()
	if err != nil {
		return err
	}

	if mac != a.MAC {
		return field.errorf("%s: the machine's MAC address is %s: leave the key out", mac, a.MAC)
	}

	return nil
}

// addOSAddress adds an address to a link. It does nothing if the link already has the address with the same
// prefix length.
func addOSAddress(networks cursor, link string, p netip.Prefix) error {
	items, err := networks.items()
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
		if id := c.get("id"); id.isPresent() {
			used[id.node.Value] = true
		}

		if c.get("link").value() != link || c.get("type").value() != kind {
			continue
		}

		if !c.get("ip_address").isPresent() {
			if free == nil {
				free = &c
			}

			continue
		}

		existing, err := parseOSAddress(c, kind == typeIPv6)
		if err != nil {
			return err
		}

		if existing.Addr() == p.Addr() {
			return requireSamePrefix(c, existing, p)
		}
	}

	if free != nil {
		return setOSAddress(*free, p)
	}

	id := ""
	for i := 0; id == "" || used[id]; i++ {
		id = fmt.Sprintf("network%d", i)
	}

	m := newNetwork(id, kind, link)
	addKey(m, "ip_address", newText(p.Addr().String()))
	addKey(m, "netmask", newText(formatMask(p)))
	networks.node.Content = append(networks.node.Content, m)

	return nil
}

// setOSAddress sets the address and the netmask of a network that has no address. An existing netmask must
// match.
func setOSAddress(c cursor, p netip.Prefix) error {
	if netmask := c.get("netmask"); netmask.isPresent() {
		bits, err := parseMask(netmask.node.Value, p.Addr())
		if err != nil {
			return netmask.wrapError(err)
		}

		if err := requireSamePrefix(netmask, netip.PrefixFrom(p.Addr(), bits), p); err != nil {
			return err
		}
	} else {
		strictyaml.SetKey(c.node, "netmask", newText(formatMask(p)))
	}

	strictyaml.SetKey(c.node, "ip_address", newText(p.Addr().String()))

	return nil
}

// requireSamePrefix returns an error if the existing prefix length differs from the allocated one. Both prefixes must have
// the same address.
func requireSamePrefix(position cursor, existing, allocated netip.Prefix) error {
	if existing != allocated {
		return position.errorf("the prefix length is %d here and %d for the pool: use the same length, or leave it out here",
			existing.Bits(), allocated.Bits())
	}

	return nil
}

// value returns a single value. It returns the empty string if there is none.
func (c cursor) value() string {
	if c.node == nil || c.node.Kind != yaml.ScalarNode {
		return ""
	}

	return c.node.Value
}

// expandV2 adds the addresses of an allocation to a network-config of version 2. It returns an error if the
// entry matches another MAC address.
func expandV2(root cursor, a *Allocation) error {
	entry, err := findV2Link(root, a)
	if err != nil {
		return err
	}

	if field := entry.get("match").get("macaddress"); field.isPresent() && a.MAC != "" {
		mac, err := field.mac()
		if err != nil {
			return err
		}

		if mac != a.MAC {
			return field.errorf("%s: the machine's MAC address is %s: leave the key out", mac, a.MAC)
		}
	}

	addresses := entry.get("addresses")
	if !addresses.isPresent() && len(a.Addresses) > 0 {
		strictyaml.SetKey(entry.node, "addresses", newList())

		addresses = entry.get("addresses")
	}

	for _, p := range a.Addresses {
		if err := addV2Address(addresses, p); err != nil {
			return err
		}
	}

	return nil
}

func addV2Address(addresses cursor, p netip.Prefix) error {
	items, err := addresses.items()
	if err != nil {
		return err
	}

	for _, c := range items {
		existing, err := c.parseV2Address()
		if err != nil {
			return err
		}

		if existing.Addr() == p.Addr() {
			return requireSamePrefix(c, existing, p)
		}
	}

	addresses.node.Content = append(addresses.node.Content, newText(p.String()))

	return nil
}

// findV2Link returns the entry of the interface. It searches by set-name or key first, and then by the match
// of a name, which can be a pattern.
func findV2Link(root cursor, a *Allocation) (cursor, error) {
	var (
		available []string
		matched   *cursor
	)

	for _, section := range v2Sections() {
		names, entries, err := root.get(section).entries()
		if err != nil {
			return cursor{}, err
		}

		for i, c := range entries {
			if c.isPresent() && c.node.Kind != yaml.MappingNode {
				return cursor{}, c.errorf("must be a mapping (key: value)")
			}

			if c.get("set-name").value() == a.Interface || names[i] == a.Interface && !c.get("set-name").isPresent() {
				if !c.isPresent() { // the entry has only a name
					strictyaml.SetKey(root.get(section).node, names[i], newMapping())
				}

				return root.get(section).get(names[i]), nil
			}

			if ok, err := path.Match(c.get("match").get("name").value(), a.Interface); err == nil && ok && matched == nil {
				matched = &c
			}

			available = append(available, names[i])
		}
	}

	if matched != nil {
		return *matched, nil
	}

	return cursor{}, a.newMissingError(root, slices.Clip(available))
}
