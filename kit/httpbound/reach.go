// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package httpbound

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Reach is how far calls go to servers that users name who are no administrators: to public
// addresses, and to what an administrator has listed. The zero value has nothing listed.
type Reach struct {
	servers  []string
	networks []netip.Prefix
	// transport is made with the Reach: one pool of connections.
	transport http.RoundTripper
}

// NewReach lists the servers of these URLs, whatever their addresses, and networks such as
// 10.20.0.0/16, whose addresses are called as public ones are.
func NewReach(urls, networks []string) (*Reach, error) {
	out := &Reach{}

	for _, text := range urls {
		parsed, err := url.Parse(text)
		if err != nil || !Safe(parsed) || parsed.User != nil {
			return nil, fmt.Errorf("read URL %q: it must be https, or http on loopback, without user and password", text)
		}

		out.servers = append(out.servers, Server(parsed))
	}

	for _, text := range networks {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("read network %q: write one such as 10.20.0.0/16", text)
		}

		out.networks = append(out.networks, network.Masked())
	}

	out.transport = out.dialing()

	return out, nil
}

// Server names the server of a URL: its host in lower case, with the port unless that is
// https's own.
func Server(u *url.URL) string {
	port := u.Port()
	if port == "" && u.Scheme == "http" {
		port = "80"
	}

	if port == "" {
		port = "443"
	}

	return CanonicalServer(net.JoinHostPort(u.Hostname(), port))
}

// CanonicalServer is a server as Server names it, from host or host:port as people write it.
func CanonicalServer(text string) string {
	text = strings.ToLower(strings.TrimSpace(text))

	return strings.TrimSuffix(strings.TrimSuffix(text, ":443"), ".")
}

// Lists says whether an administrator has listed a server, by the name that Server gives it.
func (r *Reach) Lists(server string) bool { return r != nil && slices.Contains(r.servers, server) }

// Transport has all bounds of this package, and looks at the address that is dialled, so that
// it does not matter what a name resolved to before. Behind a proxy of the environment
// (HTTPS_PROXY) it is the proxy that resolves names, and that decides.
func (r *Reach) Transport() http.RoundTripper {
	if r == nil {
		return nowhere()
	}

	return r.transport
}

//nolint:gochecknoglobals // as Shared: one pool of connections
var nowhere = sync.OnceValue(func() http.RoundTripper { return (&Reach{}).dialing() })

const (
	dialTimeout = 30 * time.Second
	keepAlive   = 30 * time.Second
)

func (r *Reach) dialing() http.RoundTripper {
	var proxies sync.Map

	open := &net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}
	guarded := &net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive, Control: r.control}

	base := Plain()
	find := base.Proxy
	base.Proxy = func(req *http.Request) (*url.URL, error) {
		if find == nil {
			return nil, nil //nolint:nilnil // as http.ProxyFromEnvironment: no proxy
		}

		proxy, err := find(req)
		if proxy != nil {
			proxies.Store(Server(proxy), true)
		}

		return proxy, err
	}
	base.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		server := CanonicalServer(address)
		if _, proxy := proxies.Load(server); proxy || r.Lists(server) {
			return open.DialContext(ctx, network, address)
		}

		return guarded.DialContext(ctx, network, address)
	}

	return Transport(base)
}

// AddressError is an address that is not called.
type AddressError struct{ Address netip.Addr }

// Error says how to have it called.
func (e *AddressError) Error() string {
	return fmt.Sprintf("the server has the address %s, which is not a public one: list the server's URL in runners.platformURLs "+
		"or its network in runners.platformNetworks of the operator's configuration", e.Address)
}

// control is asked with the address that a connection is about to be made to.
func (r *Reach) control(_, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("read the address %q: %w", address, err)
	}

	addr := at.Addr().Unmap().WithZone("")
	if public(addr) || slices.ContainsFunc(r.networks, func(n netip.Prefix) bool { return n.Contains(addr) }) {
		return nil
	}

	return &AddressError{Address: addr}
}

// public says whether an address is one of the Internet's. It leaves out what IANA's registries
// of special-purpose addresses call not globally reachable, and what stands for an IPv4
// address of any kind.
func public(addr netip.Addr) bool {
	return addr.IsGlobalUnicast() && !addr.IsPrivate() &&
		!slices.ContainsFunc(special(), func(n netip.Prefix) bool { return n.Contains(addr) })
}

//nolint:gochecknoglobals // read once
var special = sync.OnceValue(func() []netip.Prefix {
	var out []netip.Prefix

	for _, text := range []string{
		"0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15",
		"198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4",
		"::/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "2002::/16", "fec0::/10",
	} {
		out = append(out, netip.MustParsePrefix(text))
	}

	return out
})
