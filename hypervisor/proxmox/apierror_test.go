// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// requireError checks the kind of an error and the texts in its message.
func requireError(t *testing.T, err error, kind hypervisor.Kind, words ...string) {
	t.Helper()

	if hypervisor.KindOf(err) != kind || err == nil {
		t.Errorf("want kind %q, got %q: %v", kind, hypervisor.KindOf(err), err)

		return
	}

	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q does not say %q", err.Error(), word)
		}
	}
}

func TestClassify(t *testing.T) {
	c := &client{base: "https://pve:8006/api2/json", credentials: hypervisor.Credentials{TokenID: "hf@pve!op"}}
	answer := func(status int, reason string) error { return &APIError{Status: status, Reason: reason} }

	cases := []struct {
		name, method string
		err          error
		kind         hypervisor.Kind
		words        []string
	}{
		{"no such VM is a 500", "GET", answer(500, "Configuration file 'nodes/n1/qemu-server/100.conf' does not exist"),
			hypervisor.NotFound, nil},
		{"locked", "PUT", answer(500, "VM is locked (clone)"), hypervisor.Busy, []string{"clone"}},
		{"lock race", "POST", answer(500, "can't lock file '/var/lock/qemu-server/lock-100.conf' - got timeout"), hypervisor.Busy, nil},
		{"storage lock", "POST", answer(500, "cfs-lock 'storage-ceph' error: got lock request timeout"), hypervisor.Busy, nil},
		{"changed meanwhile", "PUT", answer(500, "detected modified configuration - file changed by other user? Try again."),
			hypervisor.Busy, nil},
		{"id in use", "POST", answer(500, "unable to create VM 100: config file already exists"), hypervisor.IDTaken, nil},
		{"id in use as parameter", "POST", &APIError{Status: 400, Reason: "Parameter verification failed.",
			Fields: map[string]string{"vmid": "VM 100 already exists"}}, hypervisor.IDTaken, nil},
		{"parameter", "POST", &APIError{Status: 400, Reason: "Parameter verification failed.",
			Fields: map[string]string{"net0": "invalid format"}}, hypervisor.Rejected, []string{"net0", "invalid format"}},
		{"no privilege", "GET", answer(403, "Permission check failed (/vms/100, VM.Audit)"), hypervisor.Rejected,
			[]string{"hf@pve!op lacks VM.Audit on /vms/100", "pveum acl modify /vms/100 --tokens 'hf@pve!op'"}},
		{"no privilege, without a path", "GET", answer(403, "no"), hypervisor.Rejected, []string{"hf@pve!op"}},
		{"bad credentials", "GET", answer(401, "no such user"), hypervisor.Rejected, []string{"hf@pve!op"}},
		{"proxy, reading", "GET", answer(595, "No route to host"), hypervisor.Unavailable, nil},
		{"proxy, an invalid response", "GET", answer(599, "Too many redirections"), hypervisor.Unavailable, nil},
		{"proxy, writing", "POST", answer(596, "Connection timed out"), hypervisor.UnknownOutcome, nil},
		{"gateway, writing", "DELETE", answer(502, "Bad Gateway"), hypervisor.UnknownOutcome, nil},
		{"too many", "POST", answer(429, "slow down"), hypervisor.Busy, nil},
		{"not there", "GET", answer(501, "Method 'GET /x' not implemented"), hypervisor.Rejected, nil},
		{"storage full", "POST", answer(500, "lvcreate failed: insufficient free space"), hypervisor.NoCapacity, nil},
		{"still running", "DELETE", answer(500, "VM 100 is running - destroy failed"), hypervisor.Busy, nil},
		{"quorum", "POST", answer(500, "cluster not ready - no quorum?"), hypervisor.Unavailable, nil},
		{"no worker", "POST", answer(500, "got no worker upid - start worker failed"), hypervisor.Busy, nil},
		{"something else", "POST", answer(500, "unable to parse volume filename"), "", nil},
		{"never connected", "POST", &net.OpError{Op: "dial", Err: errors.New("refused")}, hypervisor.Unavailable, []string{"pve:8006"}},
		{"cut while writing", "POST", io.ErrUnexpectedEOF, hypervisor.UnknownOutcome, nil},
		{"cut while reading", "GET", io.ErrUnexpectedEOF, hypervisor.Unavailable, nil},
		{"out of time while writing", "PUT", context.DeadlineExceeded, hypervisor.UnknownOutcome, nil},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			err := c.classify("do it", tc.method, tc.err)
			requireError(t, err, tc.kind, append(tc.words, "do it")...)
		})
	}

	if err := c.classify("do it", http.MethodPost, context.Canceled); !errors.Is(err, context.Canceled) ||
		hypervisor.KindOf(err) != "" {
		t.Errorf("a cancelled call gave %v", err)
	}

	if c.classify("do it", http.MethodGet, nil) != nil {
		t.Error("no error gave one")
	}
}

func TestBaseURL(t *testing.T) {
	for endpoint, want := range map[string]string{
		"https://pve:8006":                  "https://pve:8006/api2/json",
		"https://pve:8006/":                 "https://pve:8006/api2/json",
		"https://pve:8006/api2/json/":       "https://pve:8006/api2/json",
		"https://proxy.example/pve":         "https://proxy.example/pve/api2/json",
		"https://u:p@pve:8006/api2/json?x=": "https://pve:8006/api2/json",
	} {
		if got, err := parseEndpoint(endpoint); err != nil || got != want {
			t.Errorf("baseURL(%q) = %q, %v", endpoint, got, err)
		}
	}

	for _, endpoint := range []string{"", "pve:8006", "http://pve:8006", "https://", "%"} {
		_, err := parseEndpoint(endpoint)
		requireError(t, err, hypervisor.Rejected, "https URL")
	}
}

func TestOperation(t *testing.T) {
	for path, want := range map[string]string{
		// TestCallsOfLifecycle covers the operations of a machine's life.
		"/nodes/n1/storage/local/content": "GET /nodes/{node}/storage/{storage}/content",
		"/nodes/n1/tasks/UPID:x:/status":  "GET /nodes/{node}/tasks/{upid}/status",
		"/cluster/resources":              "GET /cluster/resources",
		"/pools/ci":                       "GET /pools/{poolid}",
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://pve:8006/api2/json"+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}

		if got := Operation(req); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}

func TestPermissions(t *testing.T) {
	p := permissions{
		"/":         {"Sys.Audit": false},
		"/vms":      {"VM.Audit": true, "VM.Clone": false},
		"/vms/9000": {"VM.Clone": true},
	}
	cases := []struct {
		name, path, privilege string
		want                  bool
	}{
		{"held there", "/vms", "VM.Clone", true},
		{"comes from above", "/vms/100", "VM.Audit", true},
		{"does not propagate", "/vms/100", "VM.Clone", false},
		{"replaced by a role below", "/vms/9000", "VM.Audit", false},
		{"not propagated from the root", "/nodes/n1", "Sys.Audit", false},
		{"nothing known", "/storage/local", "Datastore.Audit", false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got := p.has(c.path, c.privilege); got != c.want {
				t.Errorf("has(%s, %s) = %t", c.path, c.privilege, got)
			}
		})
	}
}
