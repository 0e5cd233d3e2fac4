// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

func TestTicket(t *testing.T) {
	t.Parallel()
	clk := clocktesting.NewFakeClock(time.Now())
	a := startCluster(t, nil, pve.WithClock(clk))
	r := a.asRoot()
	r.mustDo("GET", "/version", nil)
	r.mustDo("PUT", "/nodes/pve2/qemu/101/config", formData{"cores": "2"})

	forged := *r
	forged.header = http.Header{"Cookie": r.header["Cookie"]}
	got := forged.do("PUT", "/nodes/pve2/qemu/101/config", formData{"cores": "3"})
	if got.status != 401 || got.reason != "Permission denied - invalid csrf token" {
		t.Errorf("write without CSRF token: %d %s", got.status, got.reason)
	}
	forged.mustDo("GET", "/version", nil) // reading needs no CSRF token

	clk.Step(time.Hour)
	ticket := strings.TrimPrefix(r.header.Get("Cookie"), "PVEAuthCookie=")
	renewed := a.logIn(pve.RootUser, ticket)
	if got := a.do("POST", "/access/ticket", formData{"username": pve.DefaultUser, "password": ticket}); got.status != 401 {
		t.Errorf("another user's ticket as password: %d", got.status)
	}
	clk.Step(61 * time.Minute)
	got = r.do("GET", "/version", nil)
	if got.status != 401 || got.reason != "Authentication failed!" {
		t.Errorf("after two hours: %d %s", got.status, got.reason)
	}
	renewed.mustDo("GET", "/version", nil)
}

func TestTokenStates(t *testing.T) {
	t.Parallel()
	clk := clocktesting.NewFakeClock(time.Unix(1000, 0))
	a := startCluster(t, func(m *pve.Model) {
		m.Users = append(m.Users, pve.User{ID: "off@pve", Disabled: true}, pve.User{ID: "on@pve"})
		m.Tokens = append(m.Tokens, pve.Token{ID: "off@pve!t", Secret: "s"}, pve.Token{ID: "on@pve!t", Secret: "s", Expire: 1500})
	}, pve.WithClock(clk))
	on, off := a.withToken("on@pve!t", "s"), a.withToken("off@pve!t", "s")
	on.mustDo("GET", "/version", nil)
	if got := off.do("GET", "/version", nil); got.status != 401 {
		t.Errorf("token of a disabled user: %d", got.status)
	}
	clk.Step(500 * time.Second)
	if got := on.do("GET", "/version", nil); got.status != 401 || got.reason != "Authentication failed!" {
		t.Errorf("expired token: %d %s", got.status, got.reason)
	}
}

// TestLoginDelay checks the delay of responses to invalid credentials.
func TestLoginDelay(t *testing.T) {
	t.Parallel()
	clk := clocktesting.NewFakeClock(time.Now())
	a := startCluster(t, func(m *pve.Model) { m.Delays.LoginFailure = 3 * time.Second }, pve.WithClock(clk))
	got := make(chan response, 2)
	go func() { got <- a.do("POST", "/access/ticket", formData{"username": "root@pam", "password": "x"}) }()
	go func() { got <- a.withToken(pve.DefaultTokenID, "x").do("GET", "/version", nil) }()
	timing.WaitUntil(t, "delayed responses", func() bool { return clk.Waiters() == 2 })
	clk.Step(3 * time.Second)
	for range 2 {
		if g := <-got; g.status != 401 {
			t.Errorf("%d %s", g.status, g.reason)
		}
	}
}

// TestPrivilegeSeparation checks that a token has only the privileges that both the user's and its
// own grants allow, unless the separation is off.
func TestPrivilegeSeparation(t *testing.T) {
	t.Parallel()
	a := startCluster(t, func(m *pve.Model) {
		m.Users = append(m.Users, pve.User{ID: "u@pve", Groups: []string{"ops"}})
		m.Tokens = append(m.Tokens,
			pve.Token{ID: "u@pve!separate", Secret: "s"}, pve.Token{ID: "u@pve!whole", Secret: "s", NoPrivSep: true},
			pve.Token{ID: "root@pam!separate", Secret: "s"})
		m.ACL = append(m.ACL,
			pve.ACL{Path: "/vms/100", Principal: "@ops", Role: "PVEVMUser"},
			pve.ACL{Path: "/vms", Principal: "u@pve!separate", Role: "Administrator"},
			pve.ACL{Path: "/vms/101", Principal: "root@pam!separate", Role: "PVEAuditor"},
			pve.ACL{Path: "/storage", Principal: "u@pve", Role: "PVEDatastoreUser", NoPropagate: true},
		)
	})
	for _, tc := range []struct {
		reason, token, method, path string
		status                      int
	}{
		{"both allow", "u@pve!separate", "GET", "/nodes/pve1/qemu/100/config", 200},
		{"only the token allows", "u@pve!separate", "GET", "/nodes/pve2/qemu/101/config", 403},
		{"user allows by its group", "u@pve!whole", "GET", "/nodes/pve1/qemu/100/config", 200},
		{"user does not allow", "u@pve!whole", "DELETE", "/nodes/pve1/qemu/100", 403},
		{"root's token has its own grant", "root@pam!separate", "GET", "/nodes/pve2/qemu/101/config", 200},
		{"root's token has no other", "root@pam!separate", "GET", "/nodes/pve1/qemu/100/config", 403},
		{"a grant that does not propagate", "u@pve!whole", "GET", "/nodes/pve1/storage/local/status", 403},
	} {
		if got := a.withToken(tc.token, "s").do(tc.method, tc.path, nil); got.status != tc.status {
			t.Errorf("%s: %d %s, want %d", tc.reason, got.status, got.reason, tc.status)
		}
	}
}

// TestPrivilegePerCall removes one privilege at a time and expects exactly the call that requires
// the privilege to fail.
func TestPrivilegePerCall(t *testing.T) {
	t.Parallel()
	const one = "/nodes/pve1/qemu/1000"
	for _, tc := range []struct {
		method, path string
		params       formData
		priv, at     string
	}{
		{"GET", one + "/config", nil, "VM.Audit", "/vms/1000"},
		{"GET", one + "/status/current", nil, "VM.Audit", "/vms/1000"},
		{"GET", one + "/pending", nil, "VM.Audit", "/vms/1000"},
		{"POST", one + "/status/start", nil, "VM.PowerMgmt", "/vms/1000"},
		{"POST", one + "/status/stop", nil, "VM.PowerMgmt", "/vms/1000"},
		{"POST", one + "/status/shutdown", nil, "VM.PowerMgmt", "/vms/1000"},
		{"DELETE", one, nil, "VM.Allocate", "/vms/1000"},
		{"POST", one + "/template", nil, "VM.Allocate", "/vms/1000"},
		{"PUT", one + "/resize", formData{"disk": "scsi0", "size": "30G"}, "VM.Config.Disk", "/vms/1000"},
		{"POST", "/nodes/pve1/qemu/9001/clone", formData{"newid": "1001"}, "VM.Clone", "/vms/9001"},
		{"POST", "/nodes/pve1/qemu/9001/clone", formData{"newid": "1001"}, "VM.Allocate", "/vms/1001"},
		{"POST", "/nodes/pve1/qemu/9001/clone", formData{"newid": "1001"}, "Datastore.AllocateSpace", "/storage/local-lvm"},
		{"POST", "/nodes/pve1/qemu/9001/clone", formData{"newid": "1001"}, "SDN.Use", "/sdn/zones/localnetwork/vmbr0"},
		{"PUT", one + "/config", formData{"cores": "2"}, "VM.Config.CPU", "/vms/1000"},
		{"PUT", one + "/config", formData{"memory": "512"}, "VM.Config.Memory", "/vms/1000"},
		{"PUT", one + "/config", formData{"vga": "serial0"}, "VM.Config.HWType", "/vms/1000"},
		{"PUT", one + "/config", formData{"serial0": "socket"}, "VM.Config.HWType", "/vms/1000"},
		{"PUT", one + "/config", formData{"tags": "a"}, "VM.Config.Options", "/vms/1000"},
		{"PUT", one + "/config", formData{"description": "a"}, "VM.Config.Options", "/vms/1000"},
		{"PUT", one + "/config", formData{"net0": "virtio,bridge=vmbr0"}, "VM.Config.Network", "/vms/1000"},
		{"PUT", one + "/config", formData{"net1": "virtio,bridge=vmbr0"}, "SDN.Use", "/sdn/zones/localnetwork/vmbr0"},
		{"PUT", one + "/config", formData{"searchdomain": "x"}, "VM.Config.Cloudinit|VM.Config.Network", "/vms/1000"},
		{"PUT", one + "/config", formData{"boot": "order=scsi0"}, "VM.Config.Disk", "/vms/1000"},
		{"PUT", one + "/config", formData{"scsi1": "local-lvm:1"}, "VM.Config.Disk", "/vms/1000"},
		{"PUT", one + "/config", formData{"scsi1": "local-lvm:1"}, "Datastore.AllocateSpace", "/storage/local-lvm"},
		{"PUT", one + "/config", formData{"ide2": "none,media=cdrom"}, "VM.Config.CDROM", "/vms/1000"},
		{"PUT", one + "/config", formData{"delete": "ide2"}, "VM.Config.CDROM", "/vms/1000"},
		{"POST", one + "/agent/ping", nil, "VM.GuestAgent.Audit", "/vms/1000"},
		{"GET", "/nodes/pve1/status", nil, "Sys.Audit", "/nodes/pve1"},
		{"GET", "/cluster/status", nil, "Sys.Audit", "/"},
		{"GET", "/pools/ci", nil, "Pool.Audit", "/pool/ci"},
		{"DELETE", "/nodes/pve1/storage/local/content/iso/seed.iso", nil, "Datastore.Allocate", "/storage/local"},
	} {
		name := tc.method + " " + tc.path + " " + tc.priv
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := startCluster(t, func(m *pve.Model) {
				m.Users = append(m.Users, pve.User{ID: "u@pve"})
				m.Tokens = append(m.Tokens, pve.Token{ID: "u@pve!t", Secret: "s", NoPrivSep: true})
				m.Roles = append(m.Roles, pve.Role{Name: "Less", Privileges: slices.DeleteFunc(pve.Privileges(m.Version),
					func(x string) bool {
						return slices.Contains(strings.Split(tc.priv, "|"), x) || x == "VM.GuestAgent.Unrestricted"
					})})
				m.ACL = append(m.ACL, pve.ACL{Path: tc.at, Principal: "u@pve", Role: "Less"})
				if tc.at != "/" {
					m.ACL = append(m.ACL, pve.ACL{Path: "/", Principal: "u@pve", Role: "Administrator"})
				}
			})
			a.asRoot().clone("1000", nil)
			if _, err := a.s.AddISO("pve1", "local", "seed.iso", []byte("x")); err != nil {
				t.Fatal(err)
			}
			got := a.withToken("u@pve!t", "s").do(tc.method, tc.path, tc.params)
			if strings.HasSuffix(tc.path, "/clone") && tc.priv == "VM.Allocate" { // the privilege on the pool is sufficient too
				if got.status != 403 || got.reason != "Permission check failed" {
					t.Errorf("without %s: %d %s", tc.priv, got.status, got.reason)
				}
				return
			}
			if got.status != 403 || !strings.HasPrefix(got.reason, "Permission check failed ("+tc.at+", ") ||
				!strings.Contains(got.reason, tc.priv) {
				t.Errorf("without %s: %d %s", tc.priv, got.status, got.reason)
			}
		})
	}
}
