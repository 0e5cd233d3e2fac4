// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package netdata

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// HasAddress returns whether network data contains one of the addresses as a value, with or without a prefix
// length. The data can have any format, in JSON or YAML.
func HasAddress(data []byte, addresses []netip.Prefix) (bool, error) {
	root, _, err := decodeTree(data)
	if err != nil {
		return false, err
	}

	return hasAddress(root, addresses), nil
}

func hasAddress(n *yaml.Node, addresses []netip.Prefix) bool {
	if n.Kind != yaml.ScalarNode {
		return slices.ContainsFunc(n.Content, func(c *yaml.Node) bool { return hasAddress(c, addresses) })
	}

	host, _, _ := strings.Cut(n.Value, "/")

	found, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}

	return slices.ContainsFunc(addresses, func(p netip.Prefix) bool { return p.Addr() == found })
}

// chooseInterface returns the only interface of the data, for an allocation that names no interface. It
// returns the empty string if the data already contains one of the addresses.
func chooseInterface(root cursor, format Format, a *Allocation) (string, error) {
	if hasAddress(root.node, a.Addresses) {
		return "", nil
	}

	names, err := listInterfaces(root, format)
	if err != nil {
		return "", err
	}

	switch len(names) {
	case 0:
		return "", root.wrapError(fmt.Errorf("%w: it has none that can get the machine's addresses", ErrNoInterface))
	case 1:
		return names[0], nil
	default:
		return "", root.wrapError(fmt.Errorf("%w (%s): name the one that gets the machine's addresses",
			ErrSeveralInterfaces, strings.Join(names, ", ")))
	}
}

// listInterfaces returns the names by which Expand can find the interfaces of the data.
func listInterfaces(root cursor, format Format) ([]string, error) {
	var out []string

	if format == FormatOpenStack {
		links, err := root.get(keyLinks).items()
		if err != nil {
			return nil, err
		}

		for _, l := range links {
			name := l.get("name")
			if !name.isPresent() {
				name = l.get("id")
			}

			text, err := name.text()
			if err != nil {
				return nil, err
			}

			out = append(out, text)
		}

		return out, nil
	}

	for _, section := range v2Sections() {
		names, entries, err := root.get(section).entries()
		if err != nil {
			return nil, err
		}

		for i, c := range entries {
			if name := c.get("set-name").value(); name != "" {
				names[i] = name
			}

			out = append(out, names[i])
		}
	}

	return out, nil
}

// v2Sections returns all sections of version 2 that contain interfaces.
func v2Sections() []string {
	return append([]string{sectionEthernets, sectionBonds, sectionVLANs}, unsupportedSections()...)
}
