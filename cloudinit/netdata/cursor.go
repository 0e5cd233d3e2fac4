// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package netdata

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// cursor is a place in network data, with its path for errors. The node of what is not
// there is nil.
type cursor struct {
	path string
	node *yaml.Node
}

func (c cursor) present() bool { return c.node != nil }

// get is the place of a key. What is null counts as not there.
func (c cursor) get(key string) cursor {
	path := key
	if c.path != "" {
		path = c.path + "." + key
	}

	if c.node == nil || c.node.Kind != yaml.MappingNode {
		return cursor{path: path}
	}

	return cursor{path: path, node: lookup(c.node, key)}
}

func (c cursor) errorf(format string, args ...any) error {
	return c.wrap(fmt.Errorf(format, args...))
}

func (c cursor) wrap(err error) error {
	if c.path == "" {
		return fmt.Errorf("network data: %w", err)
	}

	return fmt.Errorf("network data: %s: %w", c.path, err)
}

// list gives the items of a list; none if it is not there.
func (c cursor) list() ([]cursor, error) {
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

// entries gives the values of a mapping with their keys, in their order.
func (c cursor) entries() ([]string, []cursor, error) {
	if c.node == nil {
		return nil, nil, nil
	}

	if c.node.Kind != yaml.MappingNode {
		return nil, nil, c.errorf("must be a mapping (key: value)")
	}

	names := keys(c.node)

	var out []cursor
	for _, k := range names {
		out = append(out, c.get(k))
	}

	return names, out, nil
}

// text gives a single value as it is written.
func (c cursor) text() (string, error) {
	if c.node == nil {
		return "", c.errorf("is missing")
	}

	if c.node.Kind != yaml.ScalarNode || c.node.Value == "" {
		return "", c.errorf("must be a text")
	}

	return c.node.Value, nil
}

func (c cursor) texts() ([]string, error) {
	items, err := c.list()
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

func (c cursor) integer(least, most int) (int, error) {
	s, err := c.text()
	if err != nil {
		return 0, err
	}

	i, err := strconv.Atoi(s)
	if err != nil || i < least || i > most {
		return 0, c.errorf("%q: must be a whole number from %d to %d", s, least, most)
	}

	return i, nil
}

// boolean is false for what is not there.
func (c cursor) boolean() (bool, error) {
	if c.node == nil {
		return false, nil
	}

	switch c.node.Value { // netplan takes all of these
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
		return "", c.wrap(err)
	}

	return mac, nil
}

func (c cursor) addr() (netip.Addr, error) {
	s, err := c.text()
	if err != nil {
		return netip.Addr{}, err
	}

	a, err := netip.ParseAddr(s)
	if err != nil || checkAddr(a) != nil {
		return netip.Addr{}, c.errorf("%q: is not the IP address of one machine", s)
	}

	return a, nil
}

// serverInto adds a name server, once.
func (c cursor) serverInto(dns *DNS) error {
	a, err := c.addr()
	if err == nil && !slices.Contains(dns.Servers, a) {
		dns.Servers = append(dns.Servers, a)
	}

	return err
}

// parseDNS adds name servers and search domains, each once.
func parseDNS(servers, search cursor, dns *DNS) error {
	items, err := servers.list()
	if err != nil {
		return err
	}

	for _, i := range items {
		if err := i.serverInto(dns); err != nil {
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
