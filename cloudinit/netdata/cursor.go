// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package netdata

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"

	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

// cursor is a position in network data with its path for errors. The node of a missing position is nil.
type cursor struct {
	path string
	node *yaml.Node
}

func (c cursor) isPresent() bool { return c.node != nil }

// get returns the cursor of a key. A null value counts as missing.
func (c cursor) get(key string) cursor {
	path := key
	if c.path != "" {
		path = c.path + "." + key
	}

	if c.node == nil || c.node.Kind != yaml.MappingNode {
		return cursor{path: path}
	}

	return cursor{path: path, node: strictyaml.Lookup(c.node, key)}
}

func (c cursor) errorf(format string, args ...any) error {
	return c.wrapError(fmt.Errorf(format, args...))
}

func (c cursor) wrapError(err error) error {
	if c.path == "" {
		return fmt.Errorf("network data: %w", err)
	}

	return fmt.Errorf("network data: %s: %w", c.path, err)
}

// items returns the items of a list. It returns none if the list is missing.
func (c cursor) items() ([]cursor, error) {
	if c.node == nil {
		return nil, nil
	}

	if c.node.Kind != yaml.SequenceNode {
		return nil, c.errorf("must be a list")
	}

	var out []cursor
	for i, n := range c.node.Content {
		out = append(out, cursor{path: fmt.Sprintf("%s[%d]", c.path, i), node: n})
	}

	return out, nil
}

// entries returns the keys and values of a mapping in their order.
func (c cursor) entries() (names []string, values []cursor, err error) {
	if c.node == nil {
		return nil, nil, nil
	}

	if c.node.Kind != yaml.MappingNode {
		return nil, nil, c.errorf("must be a mapping (key: value)")
	}

	names = keys(c.node)

	for _, k := range names {
		values = append(values, c.get(k))
	}

	return names, values, nil
}

// text returns a single value as it is written in the data.
func (c cursor) text() (string, error) {
	if c.node == nil {
		return "", c.errorf("is missing")
	}

	if c.node.Kind != yaml.ScalarNode || c.node.Value == "" {
		return "", c.errorf("must be a single value that is not empty")
	}

	return c.node.Value, nil
}

func (c cursor) texts() ([]string, error) {
	items, err := c.items()
	if err != nil {
		return nil, err
	}

	var out []string

	for _, i := range items {
		s, err := i.text()
		if err != nil {
			return nil, err
		}

		out = append(out, s)
	}

	return out, nil
}

func (c cursor) parseInteger(minimum, maximum int) (int, error) {
	s, err := c.text()
	if err != nil {
		return 0, err
	}

	i, err := strconv.Atoi(s)
	if err != nil || i < minimum || i > maximum {
		return 0, c.errorf("%q: must be a whole number from %d to %d", s, minimum, maximum)
	}

	return i, nil
}

// boolean parses a boolean. It returns false if the value is missing.
func (c cursor) boolean() (bool, error) {
	if c.node == nil {
		return false, nil
	}

	switch c.node.Value { // netplan accepts all of these
	case "true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON", "y", "Y":
		return true, nil
	case "false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF", "n", "N":
		return false, nil
	default:
		return false, c.errorf("must be true or false")
	}
}

func (c cursor) mac() (string, error) {
	s, err := c.text()
	if err != nil {
		return "", err
	}

	mac, err := parseMAC(s)
	if err != nil {
		return "", c.wrapError(err)
	}

	return mac, nil
}

func (c cursor) address() (netip.Addr, error) {
	s, err := c.text()
	if err != nil {
		return netip.Addr{}, err
	}

	a, err := netip.ParseAddr(s)
	if err != nil || validateAddr(a) != nil {
		return netip.Addr{}, c.errorf("%q: is not the IP address of one machine", s)
	}

	return a, nil
}

// addServerTo adds a name server to dns, unless dns already has it.
func (c cursor) addServerTo(dns *DNS) error {
	a, err := c.address()
	if err == nil && !slices.Contains(dns.Servers, a) {
		dns.Servers = append(dns.Servers, a)
	}

	return err
}

// parseDNS adds name servers and search domains to dns, without duplicates.
func parseDNS(servers, search cursor, dns *DNS) error {
	items, err := servers.items()
	if err != nil {
		return err
	}

	for _, i := range items {
		if err := i.addServerTo(dns); err != nil {
			return err
		}
	}

	domains, err := search.texts()
	for _, d := range domains {
		if !slices.Contains(dns.Search, d) {
			dns.Search = append(dns.Search, d)
		}
	}

	return err
}
