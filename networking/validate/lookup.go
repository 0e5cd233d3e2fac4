// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/miekg/dns"
)

// resolvConf is where the operator's own name servers are written (resolv.conf(5)).
const resolvConf = "/etc/resolv.conf"

// resolver asks name servers, in their order, until one answers. It reads no hosts file:
// what counts is what machines elsewhere are told.
type resolver struct {
	// servers as host:port.
	servers []string
}

// newResolver asks the servers given, or the operator's own if there are none.
func newResolver(servers []string, port string) (*resolver, error) {
	out := &resolver{}
	for _, server := range servers {
		out.servers = append(out.servers, net.JoinHostPort(server, port))
	}

	if len(out.servers) > 0 {
		return out, nil
	}

	config, err := dns.ClientConfigFromFile(resolvConf)
	if err != nil {
		return nil, fmt.Errorf("find name servers: set dns.servers of the HypervisorCluster: %w", err)
	}

	for _, server := range config.Servers {
		out.servers = append(out.servers, net.JoinHostPort(server, config.Port))
	}

	return out, nil
}

// forward gives the addresses of a name, of the family of like.
func (r *resolver) forward(ctx context.Context, name string, like netip.Addr) ([]netip.Addr, error) {
	kind := dns.TypeA
	if like.Is6() && !like.Is4In6() {
		kind = dns.TypeAAAA
	}

	answer, err := r.ask(ctx, name, kind)
	if err != nil {
		return nil, err
	}

	var found []netip.Addr

	for _, rr := range answer.Answer {
		var raw net.IP

		switch rr := rr.(type) {
		case *dns.A:
			raw = rr.A
		case *dns.AAAA:
			raw = rr.AAAA
		}

		if addr, ok := netip.AddrFromSlice(raw); ok {
			found = append(found, addr.Unmap())
		}
	}

	return found, nil
}

// reverse gives the names of an address, in lower case and without the dot at the end.
func (r *resolver) reverse(ctx context.Context, addr netip.Addr) ([]string, error) {
	name, err := dns.ReverseAddr(addr.String())
	if err != nil {
		return nil, fmt.Errorf("name the reverse of %s: %w", addr, err)
	}

	answer, err := r.ask(ctx, name, dns.TypePTR)
	if err != nil {
		return nil, err
	}

	var found []string

	for _, rr := range answer.Answer {
		if ptr, ok := rr.(*dns.PTR); ok {
			found = append(found, strings.ToLower(strings.TrimSuffix(ptr.Ptr, ".")))
		}
	}

	return found, nil
}

// ask puts one question. That there is no such name is an answer without records.
func (r *resolver) ask(ctx context.Context, name string, kind uint16) (*dns.Msg, error) {
	query := new(dns.Msg)
	query.SetQuestion(dns.Fqdn(name), kind)

	failed := errors.New("there is no name server")

	for _, server := range r.servers {
		answer, err := exchange(ctx, query, server)

		switch {
		case err != nil:
			failed = fmt.Errorf("ask name server %s: %w", server, err)
		case answer.Rcode != dns.RcodeSuccess && answer.Rcode != dns.RcodeNameError:
			failed = fmt.Errorf("ask name server %s: it answers %s", server, dns.RcodeToString[answer.Rcode])
		default:
			return answer, nil
		}
	}

	return nil, failed
}

// exchange asks by UDP, and by TCP where the answer does not fit.
func exchange(ctx context.Context, query *dns.Msg, server string) (*dns.Msg, error) {
	answer, _, err := (&dns.Client{Net: "udp"}).ExchangeContext(ctx, query, server)
	if err == nil && answer.Truncated {
		answer, _, err = (&dns.Client{Net: "tcp"}).ExchangeContext(ctx, query, server)
	}

	if err != nil {
		return nil, err
	}

	return answer, nil
}
