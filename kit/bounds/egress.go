// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bounds

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

// EgressPolicy decides which servers may be called if they are configured by users who are not
// administrators. Public addresses are allowed, and in addition the servers and networks that an
// administrator has listed. The zero value has an empty list.
type EgressPolicy struct {
	servers  []string
	networks []netip.Prefix
	// transport is created once per policy, so that all clients share one connection pool.
	transport http.RoundTripper
}

// NewEgressPolicy returns a policy that allows the servers of the URLs at any address, and all
// addresses in the networks, such as 10.20.0.0/16. Each URL must be https, or http on loopback,
// without user and password.
func NewEgressPolicy(urls, networks []string) (*EgressPolicy, error) {
	out := &EgressPolicy{}

	for _, text := range urls {
		parsed, err := url.Parse(text)
		if err != nil || !IsSecureURL(parsed) || parsed.User != nil {
			return nil, fmt.Errorf("parse URL %q: it must be https, or http on loopback, without user and password", text)
		}

		out.servers = append(out.servers, Server(parsed))
	}

	for _, text := range networks {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("parse network %q: use a CIDR such as 10.20.0.0/16", text)
		}

		out.networks = append(out.networks, network.Masked())
	}

	out.transport = LimitBodies(out.NewTransport())

	return out, nil
}

// Server returns the server of a URL as host:port in lower case. It omits port 443. If the URL has
// no port, Server uses the port of the scheme.
func Server(u *url.URL) string {
	port := u.Port()
	if port == "" && u.Scheme == "http" {
		port = "80"
	}

	if port == "" {
		port = "443"
	}

	return NormalizeServer(net.JoinHostPort(u.Hostname(), port))
}

// NormalizeServer converts host or host:port, as people write it, into the form that Server returns.
func NormalizeServer(text string) string {
	text = strings.ToLower(strings.TrimSpace(text))

	return strings.TrimSuffix(strings.TrimSuffix(text, ":443"), ".")
}

// IsListed returns whether an administrator has listed the server. The server must be in the form
// that Server returns. A nil policy lists no server.
func (r *EgressPolicy) IsListed(server string) bool {
	return r != nil && slices.Contains(r.servers, server)
}

// Transport returns a transport that has all limits of this package and enforces the policy. It
// checks the address that is dialed, so earlier results of name resolution do not matter. With a
// proxy from the environment (HTTPS_PROXY), the proxy resolves names and decides which servers are
// reached. A nil policy allows only public addresses. All callers share the transport's connections.
func (r *EgressPolicy) Transport() http.RoundTripper {
	if r == nil {
		return defaultTransport()
	}

	return r.transport
}

// defaultTransport returns the transport of a nil policy.
//
//nolint:gochecknoglobals // one connection pool, as SharedTransport
var defaultTransport = sync.OnceValue(func() http.RoundTripper { return LimitBodies((&EgressPolicy{}).NewTransport()) })

const (
	dialTimeout = 30 * time.Second
	keepAlive   = 30 * time.Second
)

// NewTransport is like Transport, but the transport has its own connections, so that the caller may change its TLS
// settings. Response bodies are not limited: wrap the transport with LimitBodies.
func (r *EgressPolicy) NewTransport() *http.Transport {
	if r == nil {
		r = &EgressPolicy{}
	}

	var proxies sync.Map

	unchecked := &net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}
	checked := &net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive, Control: r.checkAddress}

	base := NewTransport()
	findProxy := base.Proxy
	base.Proxy = func(req *http.Request) (*url.URL, error) {
		if findProxy == nil {
			return nil, nil //nolint:nilnil // no proxy, as in http.ProxyFromEnvironment
		}

		proxy, err := findProxy(req)
		if proxy != nil {
			proxies.Store(Server(proxy), true)
		}

		return proxy, err
	}
	base.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		server := NormalizeServer(address)
		if _, isProxy := proxies.Load(server); isProxy || r.IsListed(server) {
			return unchecked.DialContext(ctx, network, address)
		}

		return checked.DialContext(ctx, network, address)
	}

	return base
}

// AddressError is the error for an address that the policy does not allow.
type AddressError struct{ Address netip.Addr }

// Error names the address and how an administrator allows it.
func (e *AddressError) Error() string {
	return fmt.Sprintf("the server has the address %s, which is not public: list the server's URL in runners.platformURLs "+
		"or its network in runners.platformNetworks of the operator's configuration", e.Address)
}

// checkAddress returns an AddressError if the policy does not allow the address. The dialer calls
// it immediately before it connects.
func (r *EgressPolicy) checkAddress(_, address string, _ syscall.RawConn) error {
	addrPort, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("parse address %q: %w", address, err)
	}

	addr := addrPort.Addr().Unmap().WithZone("")
	if isPublic(addr) || slices.ContainsFunc(r.networks, func(n netip.Prefix) bool { return n.Contains(addr) }) {
		return nil
	}

	return &AddressError{Address: addr}
}

// isPublic returns whether an address is reachable on the Internet. It returns false for addresses
// that IANA's special-purpose address registries list as not globally reachable, and for IPv6
// addresses that embed an IPv4 address.
func isPublic(addr netip.Addr) bool {
	return addr.IsGlobalUnicast() && !addr.IsPrivate() &&
		!slices.ContainsFunc(specialPurposeNetworks(), func(n netip.Prefix) bool { return n.Contains(addr) })
}

//nolint:gochecknoglobals // parsed once
var specialPurposeNetworks = sync.OnceValue(func() []netip.Prefix {
	var out []netip.Prefix

	for _, text := range []string{
		"168.63.129.16/32", // the services of Azure for its own VMs, although the address is public
		"0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15",
		"198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4",
		"::/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "2002::/16", "fec0::/10",
	} {
		out = append(out, netip.MustParsePrefix(text))
	}

	return out
})
