// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	mdns "github.com/miekg/dns"
)

// ChangingServer is a DNS server whose answer for a name changes with each query, as that of an attacker
// who passes a check of the first answer (DNS rebinding).
type ChangingServer struct {
	mu      sync.Mutex
	answers map[string][]netip.Addr
	queries map[string]int
}

// StartChanging starts the server on loopback, and makes this process resolve names with it until the test
// ends, so the test must not run in parallel. The n-th query for the IPv4 addresses of a name gets the n-th
// address, and all later queries the last one.
func StartChanging(t testing.TB, answers map[string][]netip.Addr) *ChangingServer {
	t.Helper()

	s := &ChangingServer{answers: answers, queries: map[string]int{}}

	conn, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}

	server := &mdns.Server{PacketConn: conn, Handler: mdns.HandlerFunc(s.answer)}
	done := make(chan error, 1)

	go func() { done <- server.ActivateAndServe() }()

	previous := net.DefaultResolver
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{Timeout: queryTimeout}).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}

	t.Cleanup(func() {
		net.DefaultResolver = previous

		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()

		if err := server.ShutdownContext(ctx); err != nil {
			t.Errorf("stop DNS server: %v", err)
		}

		<-done
	})

	return s
}

// Queries returns the number of queries for the IPv4 addresses of a name.
func (s *ChangingServer) Queries(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.queries[mdns.Fqdn(name)]
}

func (s *ChangingServer) answer(w mdns.ResponseWriter, query *mdns.Msg) {
	response := new(mdns.Msg)
	response.SetReply(query)

	question := query.Question[0]
	if question.Qtype == mdns.TypeA {
		if addr, ok := s.next(question.Name); ok {
			response.Answer = append(response.Answer, &mdns.A{
				Hdr: mdns.RR_Header{Name: question.Name, Rrtype: mdns.TypeA, Class: mdns.ClassINET}, A: addr.AsSlice(),
			})
		}
	}

	_ = w.WriteMsg(response) // the client repeats a query that gets no response
}

// next returns the address for the next query for a name.
func (s *ChangingServer) next(name string) (netip.Addr, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	number := s.queries[name]
	s.queries[name]++

	answers := s.answers[strings.TrimSuffix(name, ".")]
	if len(answers) == 0 {
		return netip.Addr{}, false
	}

	return answers[min(number, len(answers)-1)], true
}
