// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kargs

import (
	"net/netip"
	"strings"
)

// NoCloud reads network-config of version 1 or 2, as YAML or JSON.
func NoCloud(data []byte) (Result, error) {
	var r Result

	root, err := readRoot(data)
	if err != nil {
		return r, err
	}

	var all []iface

	if root.get("config") != nil { // afterburn tells the versions apart by this
		all, err = r.version1(root)
	} else {
		if root.get("ethernets") == nil && root.get("network") != nil {
			r.warnf("what is below the key network is not read: leave the key out")
		}

		all, err = version2(root)
	}

	if err != nil {
		return r, err
	}

	r.arguments(all)

	return r, nil
}

func (r *Result) version1(root place) ([]iface, error) {
	entries, err := root.at("config").list()
	if err != nil {
		return nil, err
	}

	var (
		all     []iface
		servers []netip.Addr
		seen    bool
	)

	for _, e := range entries {
		kind, err := e.at("type").str()
		if err != nil {
			return nil, err
		}

		switch {
		case kind == "physical":
			i, err := r.physical(e)
			if err != nil {
				return nil, err
			}

			all = append(all, i)
		case kind == "nameserver" && seen:
			r.warnf("%s: only the first entry of type nameserver counts", e.path)
		case kind == "nameserver":
			seen = true

			if servers, err = e.at("address").addrs(); err != nil {
				return nil, err
			}
		default:
			r.warnf("%s: entries of type %q are not read", e.path, kind)
		}
	}

	for i := range all {
		all[i].servers = append(all[i].servers, servers...)
	}

	return all, nil
}

// physical reads a device of version 1.
func (r *Result) physical(e place) (iface, error) {
	var i iface
	if err := i.identify(e.at("name"), e.at("mac_address")); err != nil {
		return i, err
	}

	subnets, err := e.at("subnets").list()
	if err != nil {
		return i, err
	}

	for _, s := range subnets {
		if err := r.subnet(&i, s); err != nil {
			return i, err
		}
	}

	return i, nil
}

func (r *Result) subnet(i *iface, s place) error {
	kind, err := s.at("type").str()
	if err != nil {
		return err
	}

	servers, err := s.at("dns_nameservers").addrs()
	if err != nil {
		return err
	}

	for _, a := range servers {
		i.server(a)
	}

	switch {
	case strings.Contains(kind, "static"):
		if s.get("address") != nil {
			p, err := within(s, "address", "netmask")
			if err != nil {
				return err
			}

			i.addresses = append(i.addresses, p)
		}
	case kind == "dhcp" || kind == "dhcp4":
		i.dhcp4 = true
	case kind == "dhcp6":
		i.dhcp6 = true
	default:
		r.warnf("%s: subnets of type %q are not known: only routes and name servers are taken", s.path, kind)
	}

	return i.gateways(s, "gateway", destination, "gateway")
}

// gateways reads routes; where there are none, the gateways at the given keys.
func (i *iface) gateways(p place, via string, to func(place) (netip.Prefix, error), keys ...string) error {
	routes, err := p.at("routes").list()
	if err != nil {
		return err
	}

	for _, at := range routes {
		prefix, err := to(at)
		if err != nil {
			return err
		}

		gateway, err := at.at(via).addr()
		if err != nil {
			return err
		}

		i.routes = append(i.routes, route{prefix, gateway})
	}

	for _, key := range keys {
		if len(routes) > 0 || p.get(key) == nil {
			continue
		}

		gateway, err := p.at(key).addr()
		if err != nil {
			return err
		}

		i.routes = append(i.routes, everywhere(gateway))
	}

	return nil
}

// destination reads a route's destination: destination with its length, or network and
// netmask.
func destination(p place) (netip.Prefix, error) {
	if p.get("destination") != nil {
		return p.at("destination").prefix()
	}

	if _, err := p.at("netmask").str(); err != nil {
		return netip.Prefix{}, err
	}

	return within(p, "network", "netmask")
}

func version2(root place) ([]iface, error) {
	ethernets := root.at("ethernets")
	if ethernets.value == nil {
		return nil, nil
	}

	if ethernets.kind != mapping {
		return nil, ethernets.errorf("must be a mapping (key: value)")
	}

	shared, err := root.at("nameservers").at("addresses").addrs()
	if err != nil {
		return nil, err
	}

	var all []iface

	for _, key := range ethernets.keys {
		i, err := ethernet(key, ethernets.at(key))
		if err != nil {
			return nil, err
		}

		for _, s := range shared {
			i.server(s)
		}

		all = append(all, i)
	}

	return all, nil
}

// ethernet reads a device of version 2.
func ethernet(key string, p place) (iface, error) {
	var i iface

	name := place{p.path, &value{text: key, quoted: true}}
	if p.get("match") != nil && !strings.HasPrefix(key, "eth") {
		name = place{}
	}

	err := i.identify(name, p.at("match").at("macaddress"))
	if err != nil {
		return i, err
	}

	if i.dhcp4, err = p.at("dhcp4").boolean(); err != nil {
		return i, err
	}

	if i.dhcp6, err = p.at("dhcp6").boolean(); err != nil {
		return i, err
	}

	addresses, err := p.at("addresses").list()
	if err != nil {
		return i, err
	}

	for _, at := range addresses {
		a, err := at.prefix()
		if err != nil {
			return i, err
		}

		i.addresses = append(i.addresses, a)
	}

	if err := i.gateways(p, "via", routeTo, "gateway4", "gateway6"); err != nil {
		return i, err
	}

	i.servers, err = p.at("nameservers").at("addresses").addrs()

	return i, err
}

// routeTo reads a route's destination in version 2.
func routeTo(p place) (netip.Prefix, error) {
	if to := p.at("to"); to.value != nil && to.text == "default" {
		return netip.Prefix{}, to.errorf("default is not known at early boot: write 0.0.0.0/0 or ::/0")
	}

	return p.at("to").prefix()
}
