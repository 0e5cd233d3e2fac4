// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kargs

import (
	"errors"
	"slices"
)

// OpenStack reads network_data.json of a config drive, which may be YAML.
func OpenStack(data []byte) (Result, error) {
	var r Result

	root, err := readRoot(data)
	if err != nil {
		return r, err
	}

	links, err := root.at("links").list()
	if err != nil {
		return r, err
	}

	networks, err := root.at("networks").list()
	if err != nil {
		return r, err
	}

	byLink := map[string][]place{}

	for _, n := range networks {
		if _, err := n.at("id").str(); err != nil {
			return r, err
		}

		link, err := n.at("link").str()
		if err != nil {
			return r, err
		}

		byLink[link] = append(byLink[link], n)
	}

	var all []iface

	for _, l := range links {
		id, err := l.at("id").str()
		if err != nil {
			return r, err
		}

		if _, err := l.at("type").str(); err != nil {
			return r, err
		}

		if len(byLink[id]) == 0 {
			continue
		}

		i, err := r.link(l, byLink[id], root.at("services"))
		if err != nil {
			return r, err
		}

		delete(byLink, id)

		all = append(all, i)
	}

	for _, n := range networks {
		if link, _ := n.at("link").str(); byLink[link] != nil {
			r.warnf("%s: there is no link %q: it is left out", n.path, link)
		}
	}

	r.arguments(all)

	return r, nil
}

func readRoot(data []byte) (place, error) {
	v, err := parse(data)
	if err != nil {
		return place{}, err
	}

	if v.kind != mapping {
		return place{}, errors.New("must be a mapping (key: value)")
	}

	return place{"", v}, nil
}

// static says what a link takes from its network data although it asks for DHCP.
type static struct{ dns, routes bool }

// link makes an interface of a link and its networks.
func (r *Result) link(l place, networks []place, services place) (iface, error) {
	var (
		i    iface
		take static
	)

	if err := i.identify(l.at("name"), l.at("ethernet_mac_address")); err != nil {
		return i, err
	}

	for _, n := range networks {
		if err := r.network(&i, n, &take); err != nil {
			return i, err
		}
	}

	if i.dhcp4 || i.dhcp6 {
		if !take.dns {
			return i, nil
		}
	}

	items, err := services.list()
	if err != nil {
		return i, err
	}

	for _, s := range items {
		kind, err := s.at("type").str()
		if err != nil {
			return i, err
		}

		if kind != "dns" {
			continue
		}

		a, err := s.at("address").addr()
		if err != nil {
			return i, err
		}

		i.server(a)
	}

	return i, nil
}

// network adds one network to its interface.
func (r *Result) network(i *iface, n place, take *static) error {
	kind, err := n.at("type").str()
	if err != nil {
		return err
	}

	routes := true

	switch kind {
	case "ipv4", "ipv6":
		if n.get("ip_address") != nil {
			p, err := within(n, "ip_address", "netmask")
			if err != nil {
				return err
			}

			i.addresses = append(i.addresses, p)
		}
	case "ipv4_dhcp":
		i.dhcp4 = true

		if err := take.options(n.at("accept_dhcp_option")); err != nil {
			return err
		}

		routes = take.routes
	case "ipv6_dhcp":
		i.dhcp6, take.dns = true, true
		take.routes = take.routes || n.get("routes") != nil && len(n.get("routes").items) > 0
		routes = take.routes
	default:
		r.warnf("%s: networks of type %q are not known: only its routes and name servers are taken", n.path, kind)
	}

	servers, err := n.at("dns_nameservers").addrs()
	if err != nil {
		return err
	}

	for _, s := range servers {
		i.server(s)
	}

	if !routes {
		return nil
	}

	items, err := n.at("routes").list()
	if err != nil {
		return err
	}

	for _, at := range items {
		to, err := destination(at)
		if err != nil {
			return err
		}

		via, err := at.at("gateway").addr()
		if err != nil {
			return err
		}

		i.routes = append(i.routes, route{to, via})
	}

	return nil
}

// options reads which answers of a DHCP server are wanted: without a list the name
// servers of the network data count as well, with one what it does not name.
func (s *static) options(at place) error {
	items, err := at.list()
	if err != nil {
		return err
	}

	var accept []string

	for _, i := range items {
		o, err := i.str()
		if err != nil {
			return err
		}

		accept = append(accept, o)
	}

	if len(accept) == 0 {
		s.dns = true

		return nil
	}

	s.routes = s.routes || !slices.Contains(accept, "router")
	s.dns = s.dns || !slices.Contains(accept, "domain_name_server")

	return nil
}
