// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bounds_test

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"testing"

	"github.com/hyperfleet/hyperfleet/kit/bounds"
	dnstest "github.com/hyperfleet/hyperfleet/test/dns"
)

func newPolicy(t *testing.T, urls, networks []string) *bounds.EgressPolicy {
	t.Helper()

	out, err := bounds.NewEgressPolicy(urls, networks)
	if err != nil {
		t.Fatal(err)
	}

	return out
}

// TestDialedAddressIsChecked uses localhost for a name that resolved to another address in an earlier
// check.
func TestDialedAddressIsChecked(t *testing.T) {
	t.Parallel()

	called := false
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { called = true }))
	t.Cleanup(server.Close)

	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}

	byName := "http://localhost:" + port

	for name, tt := range map[string]struct {
		policy  *bounds.EgressPolicy
		url     string
		refused bool
	}{
		"nothing listed":        {newPolicy(t, nil, nil), server.URL, true},
		"nothing listed, name":  {newPolicy(t, nil, nil), byName, true},
		"no policy at all":      {nil, byName, true},
		"another port":          {newPolicy(t, []string{"http://127.0.0.1:1"}, nil), server.URL, true},
		"another network":       {newPolicy(t, nil, []string{"10.0.0.0/8"}), byName, true},
		"the address is listed": {newPolicy(t, []string{server.URL + "/api/v3"}, nil), server.URL, false},
		"the name is listed":    {newPolicy(t, []string{byName}, nil), byName, false},
		"the other is listed":   {newPolicy(t, []string{server.URL}, nil), byName, true},
		"its network is listed": {newPolicy(t, nil, []string{"127.0.0.0/8", "::1/128"}), byName, false},
	} {
		called = false
		resp, err := (&http.Client{Transport: tt.policy.Transport()}).Get(tt.url)

		if err == nil {
			_ = resp.Body.Close()
		}

		_, refused := errors.AsType[*bounds.AddressError](err)
		if refused != tt.refused || called == tt.refused || !refused && err != nil {
			t.Errorf("%s: error %v, called %v, want refused %v", name, err, called, tt.refused)
		}
	}
}

// TestRebinding checks that a name cannot lead the operator to an address that the policy does not allow, although the
// name had an allowed address when it was resolved before. 127.0.0.2 stands for a public address.
func TestRebinding(t *testing.T) { //nolint:paralleltest // the test changes the resolver of the process
	const name = "git.example.com"

	calls := map[string]int{}
	public := startServer(t, "127.0.0.2:0", func(r *http.Request) { calls[r.Host]++ })
	_, port, err := net.SplitHostPort(public)
	if err != nil {
		t.Fatal(err)
	}

	startServer(t, "127.0.0.1:"+port, func(*http.Request) { t.Error("the private server was called") })

	server := dnstest.StartChanging(t, map[string][]netip.Addr{
		name: {netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("169.254.169.254")},
	})
	client := &http.Client{Transport: newPolicy(t, nil, []string{"127.0.0.2/32"}).Transport()}

	for _, refused := range []bool{false, true, true} {
		resp, err := client.Get("http://" + name + ":" + port + "/")
		if err == nil {
			_ = resp.Body.Close()
		}

		if _, isRefused := errors.AsType[*bounds.AddressError](err); isRefused != refused || !refused && err != nil {
			t.Errorf("error %v, want refused %v", err, refused)
		}
	}

	if got := server.Queries(name); got != 3 || calls[name+":"+port] != 1 {
		t.Errorf("%d queries, calls %v, want 3 queries and one call", got, calls)
	}
}

// startServer starts an HTTP server that ends each connection after a response, and returns its address.
func startServer(t *testing.T, address string, record func(*http.Request)) string {
	t.Helper()

	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}

	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			record(r)
			w.Header().Set("Connection", "close")
		})}}
	server.Start()
	t.Cleanup(server.Close)

	return listener.Addr().String()
}

func TestAddressesThatAreNotPublic(t *testing.T) {
	t.Parallel()

	transport := newPolicy(t, nil, nil).Transport()

	for _, host := range []string{
		"127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "169.254.169.254", "[fe80::1]", "[fd00:ec2::254]", "10.96.0.1", "172.16.0.1",
		"192.168.1.1", "100.64.0.1", "0.0.0.0", "[::]", "224.0.0.1", "255.255.255.255", "[64:ff9b::a9fe:a9fe]", "[2002:7f00:1::]",
		"[::7f00:1]", "168.63.129.16",
	} {
		resp, err := (&http.Client{Transport: transport}).Get("https://" + host + "/")
		if err == nil {
			_ = resp.Body.Close()
		}

		if _, refused := errors.AsType[*bounds.AddressError](err); !refused {
			t.Errorf("%s: error %v, want it refused before it is called", host, err)
		}
	}
}

func TestNamesOfServers(t *testing.T) {
	t.Parallel()

	for text, want := range map[string]string{
		"https://API.GitHub.com/x": "api.github.com", "https://api.github.com:443": "api.github.com",
		"https://api.github.com.": "api.github.com", "https://[2001:DB8::1]:443": "[2001:db8::1]", "https://[2001:db8::1]": "[2001:db8::1]",
		"https://git.example.com:8443/x": "git.example.com:8443", "http://127.0.0.1": "127.0.0.1:80",
	} {
		parsed, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}

		if got := bounds.Server(parsed); got != want {
			t.Errorf("Server(%s) = %s, want %s", text, got, want)
		}
	}
}

func TestInvalidLists(t *testing.T) {
	t.Parallel()

	for _, lists := range [][2][]string{
		{{"http://git.example.com"}, nil}, {{"git.example.com"}, nil}, {{"https://u:p@git.example.com"}, nil}, {nil, {"10.0.0.1"}},
	} {
		if _, err := bounds.NewEgressPolicy(lists[0], lists[1]); err == nil {
			t.Errorf("%v was accepted", lists)
		}
	}
}
