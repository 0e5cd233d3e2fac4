// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bounds_test

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/hyperfleet/hyperfleet/kit/bounds"
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
