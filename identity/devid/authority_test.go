// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package devid_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/identity"
	"github.com/hyperfleet/hyperfleet/identity/devid"
)

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// ca is a certificate authority, or what is taken for one.
type ca struct {
	cert *x509.Certificate
	key  crypto.Signer
}

func (c ca) pem(t testing.TB) (certificate, key []byte) {
	t.Helper()

	der, err := x509.MarshalPKCS8PrivateKey(c.key)
	if err != nil {
		t.Fatal(err)
	}

	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.cert.Raw}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

func newKey(t testing.TB, kind string) crypto.Signer {
	t.Helper()

	var (
		key crypto.Signer
		err error
	)

	switch kind {
	case "rsa":
		key, err = rsa.GenerateKey(rand.Reader, 2048)
	case "ed25519":
		_, key, err = ed25519.GenerateKey(rand.Reader)
	default:
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}

	if err != nil {
		t.Fatal(err)
	}

	return key
}

// newCA makes an authority under another one, or a root, changed as the case wants it.
func newCA(t testing.TB, kind string, parent *ca, change func(*x509.Certificate)) ca {
	t.Helper()

	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "devices"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(365 * 24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	if change != nil {
		change(template)
	}

	out := ca{key: newKey(t, kind)}
	above, signer := template, out.key

	if parent != nil {
		above, signer = parent.cert, parent.key
	}

	der, err := x509.CreateCertificate(rand.Reader, template, above, out.key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}

	out.cert, err = x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}

	return out
}

func TestIssue(t *testing.T) {
	t.Parallel()

	machine := identity.ID{Namespace: "team-a", Name: "linux-x7f2p", UID: "3b1c2d4e-0000-4000-8000-000000000001"}

	for _, kind := range []string{"rsa", "ecdsa", "ed25519"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()

			root := newCA(t, kind, nil, nil)
			authority := mustNew(t, root)

			request := devid.Request{Machine: machine, Public: public(t, rsaKey(t), nil), At: now, Lifetime: 2 * time.Hour}

			got, err := authority.Issue(request)
			if err != nil {
				t.Fatal(err)
			}

			again, err := authority.Issue(request)
			if err != nil || !bytes.Equal(again.Chain[0], got.Chain[0]) {
				t.Errorf("one request has two certificates: %v", err)
			}

			leaf, err := x509.ParseCertificate(got.Chain[0])
			if err != nil {
				t.Fatal(err)
			}

			pool := x509.NewCertPool()
			pool.AddCert(root.cert)

			if _, err := leaf.Verify(x509.VerifyOptions{Roots: pool, CurrentTime: now}); err != nil {
				t.Error(err)
			}

			if leaf.Subject.CommonName != machine.UID || leaf.IsCA || leaf.KeyUsage != x509.KeyUsageDigitalSignature ||
				!leaf.NotAfter.Equal(now.Add(2*time.Hour)) || !leaf.NotBefore.Equal(now.Add(-5*time.Minute)) ||
				leaf.SerialNumber.Sign() <= 0 || leaf.SerialNumber.Cmp(got.Serial) != 0 || !leaf.NotAfter.Equal(got.NotAfter) {
				t.Errorf("certificate: %+v", leaf)
			}

			request.Machine.UID = "another"

			other, err := authority.Issue(request)
			if err != nil || other.Serial.Cmp(got.Serial) == 0 {
				t.Errorf("two machines have one serial: %v", err)
			}
		})
	}
}

func TestLifetime(t *testing.T) {
	t.Parallel()

	root := newCA(t, "", nil, func(c *x509.Certificate) { c.NotAfter = now.Add(30 * time.Hour) })
	authority := mustNew(t, root)

	for name, tc := range map[string]struct {
		at   time.Time
		asks time.Duration
		want time.Duration
	}{
		"none":                 {now, 0, 24 * time.Hour},
		"as long as asked for": {now, time.Hour, time.Hour},
		"bounded":              {now, 48 * time.Hour, 24 * time.Hour},
		"by the authority":     {now.Add(28 * time.Hour), 0, 2 * time.Hour},
	} {
		got, err := authority.Issue(devid.Request{Public: public(t, eccKey(t), nil), At: tc.at, Lifetime: tc.asks})
		if err != nil || !got.NotAfter.Equal(tc.at.Add(tc.want)) {
			t.Errorf("%s: ends at %s (%v), want %s", name, got.NotAfter, err, tc.at.Add(tc.want))
		}
	}
}

// The chain leads to the root, and has it not.
func TestIntermediate(t *testing.T) {
	t.Parallel()

	root := newCA(t, "", nil, func(c *x509.Certificate) { c.Subject.CommonName = "root" })
	middle := newCA(t, "", &root, nil)

	certificate, key := middle.pem(t)
	top, _ := root.pem(t)

	authority, err := devid.New(append(certificate, top...), key, now)
	if err != nil {
		t.Fatal(err)
	}

	got, err := authority.Issue(devid.Request{Public: public(t, eccKey(t), nil), At: now})
	if err != nil || len(got.Chain) != 2 || !bytes.Equal(got.Chain[1], middle.cert.Raw) {
		t.Fatalf("chain of %d, %v", len(got.Chain), err)
	}
}

func TestUnusableAuthorities(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		change func(*x509.Certificate)
		want   string
	}{
		"not an authority": {func(c *x509.Certificate) { c.IsCA = false; c.KeyUsage = 0 }, "CA:TRUE"},
		"may not sign":     {func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageCRLSign }, "keyCertSign"},
		"not valid yet":    {func(c *x509.Certificate) { c.NotBefore = now.Add(time.Minute) }, "correct the clock"},
		"expired":          {func(c *x509.Certificate) { c.NotAfter = now }, "renew it"},
	} {
		certificate, key := newCA(t, "", nil, tc.change).pem(t)

		if _, err := devid.New(certificate, key, now); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want an error with %q", name, err, tc.want)
		}
	}

	certificate, _ := newCA(t, "", nil, nil).pem(t)
	_, key := newCA(t, "", nil, nil).pem(t)

	if _, err := devid.New(certificate, key, now); err == nil || strings.Contains(err.Error(), string(key)) {
		t.Errorf("another's key: %v", err)
	}

	if _, err := devid.New(nil, nil, now); err == nil {
		t.Error("nothing")
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	settings := config.DevID{CertFile: filepath.Join(dir, "tls.crt"), KeyFile: filepath.Join(dir, "tls.key")}
	clock := clocktesting.NewFakePassiveClock(now)

	write := func(path string, data []byte) {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}

	if _, err := devid.Load(settings, clock); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "certFile") {
		t.Errorf("without certificate: %v", err)
	}

	certificate, key := newCA(t, "", nil, nil).pem(t)
	write(settings.CertFile, certificate)

	if _, err := devid.Load(settings, clock); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "keyFile") {
		t.Errorf("without key: %v", err)
	}

	write(settings.KeyFile, key)

	if _, err := devid.Load(settings, clock); err != nil {
		t.Error(err)
	}

	clock.SetTime(now.Add(400 * 24 * time.Hour))

	if _, err := devid.Load(settings, clock); err == nil || !strings.Contains(err.Error(), settings.CertFile) {
		t.Errorf("expired: %v", err)
	}
}

func mustNew(t testing.TB, of ca) *devid.Authority {
	t.Helper()

	certificate, key := of.pem(t)

	authority, err := devid.New(certificate, key, now)
	if err != nil {
		t.Fatal(err)
	}

	return authority
}
