// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/proxmox"
	"github.com/hyperfleet/hyperfleet/kit/retry"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
)

func usePassword(c *hypervisor.Config, _ *hypervisor.Options) {
	c.Credentials = hypervisor.Credentials{Username: pve.DefaultUser, Password: pve.DefaultPassword}
}

// withTLS returns an option that sets how the server's certificate is verified.
func withTLS(t testing.TB, spec *v1alpha1.HypervisorTLS) func(*hypervisor.Config, *hypervisor.Options) {
	t.Helper()

	config, err := hypervisor.NewTLSConfig(spec, nil, nil)
	if err != nil {
		t.Fatal(err)
	}

	return func(c *hypervisor.Config, _ *hypervisor.Options) { c.TLS = config }
}

func TestWaysToConnect(t *testing.T) { //nolint:tparallel // its subtests share a server and run one after the other
	t.Parallel()

	s := pvetest.New(t, fastModel())
	cases := []struct {
		name   string
		change []func(*hypervisor.Config, *hypervisor.Options)
	}{
		{"token and fingerprint", nil},
		{"token and CA bundle", []func(*hypervisor.Config, *hypervisor.Options){withTLS(t, &v1alpha1.HypervisorTLS{CABundle: s.CAPEM()})}},
		{"insecure by name", []func(*hypervisor.Config, *hypervisor.Options){withTLS(t, &v1alpha1.HypervisorTLS{InsecureSkipVerify: true})}},
		{"password", []func(*hypervisor.Config, *hypervisor.Options){usePassword}},
		{"endpoint without a path", []func(*hypervisor.Config, *hypervisor.Options){
			func(c *hypervisor.Config, _ *hypervisor.Options) { c.Endpoint = s.URL() },
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			info, err := connect(t, s, c.change...).Check(t.Context())
			if err != nil || info.Version != "9.0.3" || len(info.Nodes) != 3 || !info.Nodes[0].Online {
				t.Fatalf("check: %+v %v", info, err)
			}
		})
	}

	p := connect(t, s, usePassword)
	_, sp := create(t, p, newSpec(1))
	remove(t, p, sp)
}

func TestTicket(t *testing.T) {
	t.Parallel()

	clk := clocktesting.NewFakeClock(time.Now())
	s := pvetest.New(t, fastModel(), pve.WithClock(clk))
	p := connect(t, s, usePassword, func(_ *hypervisor.Config, o *hypervisor.Options) { o.Clock = clk })

	check := func(want int, why string) {
		t.Helper()

		if _, err := p.Check(t.Context()); err != nil {
			t.Fatalf("%s: %v", why, err)
		}

		if got := countCalls(s, "", "/access/ticket"); got != want {
			t.Errorf("%s: %d logins, want %d", why, got, want)
		}
	}

	check(1, "the first call logs in")
	check(1, "the ticket serves all calls")
	clk.Step(100 * time.Minute)
	check(2, "it is renewed before its two hours are over")
	clk.Step(10 * time.Hour)
	check(4, "a ticket run out can't renew itself: the password logs in")
	s.AddFault(pve.Fault{Kind: pve.FaultUnauthorized, Path: "/version", Count: 1})
	check(5, "a refusal renews once")
}

func TestClientCertificate(t *testing.T) {
	t.Parallel()

	certPEM, keyPEM, pool := newClientCertificate(t)
	s := pvetest.Listen(t, fastModel(), pve.ListenOptions{ClientCAs: pool})

	with, err := hypervisor.NewTLSConfig(&v1alpha1.HypervisorTLS{CABundle: s.CAPEM()}, certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}

	p := connect(t, s, func(c *hypervisor.Config, _ *hypervisor.Options) { c.TLS = with })
	if _, err := p.Check(t.Context()); err != nil {
		t.Error(err)
	}

	without := connect(t, s)
	_, err = without.Check(t.Context())
	requireError(t, err, hypervisor.Unavailable)

	// With the certificate alone, no call has a token and nothing logs in. The simulator refuses such calls, as Proxmox VE
	// does if nothing in front of it accepts the certificate.
	calls := 0
	alone := connect(t, s, func(c *hypervisor.Config, o *hypervisor.Options) {
		c.TLS, c.Credentials = with, hypervisor.Credentials{}
		o.WrapTransport = func(next http.RoundTripper) http.RoundTripper {
			return retry.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
				calls++

				if r.Header.Get("Authorization") != "" || r.Header.Get("Cookie") != "" || r.Method != http.MethodGet {
					t.Errorf("%s %s with header %v", r.Method, r.URL.Path, r.Header)
				}

				return next.RoundTrip(r)
			})
		}
	})

	if _, err := alone.Check(t.Context()); calls == 0 {
		t.Errorf("no call was made: %v", err)
	}
}

func newClientCertificate(t testing.TB) (certPEM, keyPEM []byte, pool *x509.CertPool) {
	t.Helper()

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}

	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "operator"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}

	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}

	rawKey, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}

	certPEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	pool = x509.NewCertPool()
	pool.AppendCertsFromPEM(certPEM)

	return certPEM, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: rawKey}), pool
}

// Each error names what a person has to fix.
func TestBadConnections(t *testing.T) {
	t.Parallel()

	type change = func(*hypervisor.Config, *hypervisor.Options)

	cases := []struct {
		name   string
		model  func(*pve.Model)
		change change
		kind   hypervisor.Kind
		words  []string
	}{
		{"wrong token", nil, func(c *hypervisor.Config, _ *hypervisor.Options) { c.Credentials.TokenSecret = "s3cr3t" },
			hypervisor.Rejected, []string{pve.DefaultTokenID, "check the id and the secret"}},
		{"wrong password", nil, func(c *hypervisor.Config, _ *hypervisor.Options) {
			c.Credentials = hypervisor.Credentials{Username: pve.DefaultUser, Password: "s3cr3t"}
		}, hypervisor.Rejected, []string{pve.DefaultUser, "credentials"}},
		{"unreachable", nil, func(c *hypervisor.Config, _ *hypervisor.Options) {
			c.Credentials.TokenSecret, c.Endpoint = "s3cr3t", "https://127.0.0.1:1/api2/json"
		}, hypervisor.Unavailable, []string{"127.0.0.1:1"}},
		{"unknown node", nil, func(c *hypervisor.Config, _ *hypervisor.Options) { c.Nodes = []string{"pve8", "pve9"} },
			hypervisor.Rejected, []string{"no node pve8, pve9", "pve1, pve2, pve3"}},
		{"unknown ISO storage", nil, func(c *hypervisor.Config, _ *hypervisor.Options) { c.ISOStorage = "nas" },
			hypervisor.Rejected, []string{"nas"}},
		{"ISO storage without ISOs", func(m *pve.Model) { grant(m, "/storage/local-lvm", "HyperFleetISO") },
			func(c *hypervisor.Config, _ *hypervisor.Options) { c.ISOStorage = "local-lvm" },
			hypervisor.Rejected, []string{"storage local-lvm", "does not accept ISOs", "choose another isoStorage"}},
		{"default storage without disks", func(m *pve.Model) { grant(m, "/storage/local", "HyperFleetISO") },
			func(c *hypervisor.Config, _ *hypervisor.Options) { c.DefaultStorage = "local" },
			hypervisor.Rejected, []string{"storage local", "does not accept VM disks", "pvesm set local"}},
		{"missing privilege on machines", func(m *pve.Model) { revoke(m, "HyperFleetVM", "VM.Config.CDROM") },
			func(c *hypervisor.Config, _ *hypervisor.Options) { c.ResourcePool = "" },
			hypervisor.Rejected, []string{"VM.Config.CDROM", "/vms", "pveum acl modify", pve.DefaultTokenID}},
		{"missing privilege on nodes", func(m *pve.Model) { revoke(m, "HyperFleetSys", "Sys.Audit") }, nil,
			hypervisor.Rejected, []string{"Sys.Audit", "/nodes/pve1"}},
		{"missing privilege on the ISO storage", func(m *pve.Model) { revoke(m, "HyperFleetISO", "Datastore.AllocateTemplate") }, nil,
			hypervisor.Rejected, []string{"Datastore.AllocateTemplate", "/storage/local"}},
		{"missing privilege to remove ISOs", func(m *pve.Model) { revoke(m, "HyperFleetISO", "Datastore.Allocate") }, nil,
			hypervisor.Rejected, []string{"Datastore.Allocate", "/storage/local"}},
		{"endpoint is no URL", nil, func(c *hypervisor.Config, _ *hypervisor.Options) { c.Endpoint = "pve:8006" },
			hypervisor.Rejected, []string{"https URL"}},
		{"range outside of Proxmox's", nil, func(c *hypervisor.Config, _ *hypervisor.Options) { c.IDMin = 5 },
			hypervisor.Rejected, []string{"vmIdRange 5 to 100999"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()

			m := fastModel()
			if c.model != nil {
				c.model(&m)
			}

			s := pvetest.New(t, m)

			if c.change == nil {
				c.change = func(*hypervisor.Config, *hypervisor.Options) {}
			}

			err := connectError(t, s, c.change)
			requireError(t, err, c.kind, c.words...)

			if err != nil && strings.Contains(err.Error(), "s3cr3t") {
				t.Error("the error contains the secret")
			}

			if len(s.Snapshot().CreatedVMs()) > 0 {
				t.Error("a machine was created")
			}
		})
	}
}

func TestUntrustedCertificate(t *testing.T) {
	t.Parallel()

	s := pvetest.New(t, fastModel())

	// The message shows the fingerprint to pin, and a pinned fingerprint works.
	err := connectError(t, s, func(c *hypervisor.Config, _ *hypervisor.Options) { c.TLS = nil })
	requireError(t, err, hypervisor.Rejected, "not trusted", "tls.fingerprint to "+s.Fingerprint())

	other := strings.Repeat("AB:", 31) + "AB"
	err = connectError(t, s, withTLS(t, &v1alpha1.HypervisorTLS{Fingerprint: other}))
	requireError(t, err, hypervisor.Rejected, "does not match the pinned fingerprint", s.Fingerprint())

	err = connectError(t, s, withTLS(t, &v1alpha1.HypervisorTLS{CABundle: pvetest.New(t, fastModel()).CAPEM()}))
	requireError(t, err, hypervisor.Rejected, "not trusted")

	if calls := s.Calls(); len(calls) > 0 {
		t.Errorf("credentials were sent to a server that is not trusted: %+v", calls)
	}
}

func TestTransportIsWrapped(t *testing.T) {
	t.Parallel()

	s := pvetest.New(t, fastModel())

	var seen atomic.Int64

	p := connect(t, s, func(_ *hypervisor.Config, o *hypervisor.Options) {
		o.WrapTransport = func(next http.RoundTripper) http.RoundTripper {
			return retry.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
				seen.Add(1)

				return next.RoundTrip(r)
			})
		}
	})

	if _, err := p.Check(t.Context()); err != nil {
		t.Fatal(err)
	}

	if got, want := seen.Load(), int64(len(s.Calls())); got != want {
		t.Errorf("%d calls were seen of %d", got, want)
	}
}

// connectError returns the error of New, or otherwise of Check.
func connectError(t testing.TB, s *pve.Server, change func(*hypervisor.Config, *hypervisor.Options)) error {
	t.Helper()

	c, o := newConfig(s), fastOptions(t)
	change(&c, &o)

	p, err := proxmox.New(c, o)
	if err != nil {
		return err
	}
	defer p.Close()

	_, err = p.Check(t.Context())

	return err
}

// grant assigns a role on a path to the operator's user and token.
func grant(m *pve.Model, path, role string) {
	m.ACL = slices.Clone(m.ACL)
	m.ACL = slices.DeleteFunc(m.ACL, func(a pve.ACL) bool { return a.Path == path })

	for _, who := range []string{pve.DefaultUser, pve.DefaultTokenID} {
		m.ACL = append(m.ACL, pve.ACL{Path: path, Principal: who, Role: role})
	}
}

// revoke removes a privilege from a role.
func revoke(m *pve.Model, role, privilege string) {
	m.Roles = slices.Clone(m.Roles)

	for i, r := range m.Roles {
		if r.Name == role {
			m.Roles[i].Privileges = slices.DeleteFunc(slices.Clone(r.Privileges), func(p string) bool { return p == privilege })
		}
	}
}
