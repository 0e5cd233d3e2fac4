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

// Has says whether data of any format, JSON or YAML, has one of the addresses as a value,
// with a prefix length or without.
func Has(data []byte, addresses []netip.Prefix) (bool, error) {
	root, _, err := decode(data)
	if err != nil {
		return false, err
	}

	return has(root, addresses), nil
}

func has(n *yaml.Node, addresses []netip.Prefix) bool {
	if n.Kind != yaml.ScalarNode {
		return slices.ContainsFunc(n.Content, func(c *yaml.Node) bool { return has(c, addresses) })
	}

	host, _, _ := strings.Cut(n.Value, "/")

	found, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}

	return slices.ContainsFunc(addresses, func(p netip.Prefix) bool { return p.Addr() == found })
}

// choose finds the interface of an allocation that names none: the only one there is. It
// finds none where the data have the addresses already.
func choose(root cursor, format Format, a *Allocation) (string, error) {
	if has(root.node, a.Addresses) {
		return "", nil
	}

	names, err := interfaces(root, format)
	if err != nil {
		return "", err
	}

	switch len(names) {
	case 0:
		return "", root.wrap(fmt.Errorf("%w: it has none that could get the machine's addresses", ErrNoInterface))
	case 1:
		return names[0], nil
	default:
		return "", root.wrap(fmt.Errorf("%w (%s): name the one that gets the machine's addresses",
			ErrSeveralInterfaces, strings.Join(names, ", ")))
	}
}

// interfaces are the names that the data's interfaces can be found by.
func interfaces(root cursor, format Format) ([]string, error) {
	var out []string

	if format == OpenStack {
		links, err := root.get(keyLinks).list()
		if err != nil {
			return nil, err
		}

		for _, l := range links {
			name := l.get("name")
			if !name.present() {
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

// v2Sections are all sections of version 2 that hold interfaces.
func v2Sections() []string {
	return append([]string{sectionEthernets, sectionBonds, sectionVLANs}, notInModel()...)
}
