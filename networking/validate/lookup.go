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

// resolvConf is the file with the operator's own name servers (resolv.conf(5)).
const resolvConf = "/etc/resolv.conf"

// resolver queries name servers in their order until one responds. It does not read the hosts file, because
// the check is about the responses that other machines get.
type resolver struct {
	// servers are the name servers as HOST:PORT.
	servers []string
}

// newResolver returns a resolver for the servers, or for the operator's own name servers if servers is empty.
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
		return nil, fmt.Errorf("find name servers: %w: set dns.servers of the HypervisorCluster", err)
	}

	for _, server := range config.Servers {
		out.servers = append(out.servers, net.JoinHostPort(server, config.Port))
	}

	return out, nil
}

// lookupAddresses returns the addresses of a name. It looks up only the family of sample.
func (r *resolver) lookupAddresses(ctx context.Context, name string, sample netip.Addr) ([]netip.Addr, error) {
	recordType := dns.TypeA
	if sample.Is6() && !sample.Is4In6() {
		recordType = dns.TypeAAAA
	}

	response, err := r.query(ctx, name, recordType)
	if err != nil {
		return nil, err
	}

	var found []netip.Addr

	for _, rr := range response.Answer {
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

// lookupNames returns the names of an address, in lower case and without the dot at the end.
func (r *resolver) lookupNames(ctx context.Context, addr netip.Addr) ([]string, error) {
	name, err := dns.ReverseAddr(addr.String())
	if err != nil {
		return nil, fmt.Errorf("build the reverse name of %s: %w", addr, err)
	}

	response, err := r.query(ctx, name, dns.TypePTR)
	if err != nil {
		return nil, err
	}

	var found []string

	for _, rr := range response.Answer {
		if ptr, ok := rr.(*dns.PTR); ok {
			found = append(found, strings.ToLower(strings.TrimSuffix(ptr.Ptr, ".")))
		}
	}

	return found, nil
}

// query sends one query and returns the response. For a name that does not exist, the response has no
// records.
func (r *resolver) query(ctx context.Context, name string, recordType uint16) (*dns.Msg, error) {
	question := new(dns.Msg)
	question.SetQuestion(dns.Fqdn(name), recordType)

	lastErr := errors.New("no name server is configured")

	for _, server := range r.servers {
		response, err := exchange(ctx, question, server)

		switch {
		case err != nil:
			lastErr = fmt.Errorf("query name server %s: %w", server, err)
		case response.Rcode != dns.RcodeSuccess && response.Rcode != dns.RcodeNameError:
			lastErr = fmt.Errorf("query name server %s: it responded with %s", server, dns.RcodeToString[response.Rcode])
		default:
			return response, nil
		}
	}

	return nil, lastErr
}

// exchange sends a query over UDP, and repeats it over TCP if the response is truncated.
func exchange(ctx context.Context, query *dns.Msg, server string) (*dns.Msg, error) {
	response, _, err := (&dns.Client{Net: "udp"}).ExchangeContext(ctx, query, server)
	if err == nil && response.Truncated {
		response, _, err = (&dns.Client{Net: "tcp"}).ExchangeContext(ctx, query, server)
	}

	if err != nil {
		return nil, err
	}

	return response, nil
}
