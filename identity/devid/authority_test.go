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

// ca is a certificate authority, or a certificate that the test uses as one.
type ca struct {
	cert *x509.Certificate
	key  crypto.Signer
}

func (c ca) encodePEM(t testing.TB) (certificate, key []byte) {
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

// newCA returns an authority below parent, or a root if parent is nil, with the change of the case.
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
	issuer, signer := template, out.key

	if parent != nil {
		issuer, signer = parent.cert, parent.key
	}

	der, err := x509.CreateCertificate(rand.Reader, template, issuer, out.key.Public(), signer)
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

			request := devid.Request{Machine: machine, PublicArea: encodePublicArea(t, newRSAPublicKey(t), nil), RequestedAt: now, Lifetime: 2 * time.Hour}

			got, err := authority.Issue(request)
			if err != nil {
				t.Fatal(err)
			}

			again, err := authority.Issue(request)
			if err != nil || !bytes.Equal(again.Chain[0], got.Chain[0]) {
				t.Errorf("the same request results in two certificates: %v", err)
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
				t.Errorf("two machines have the same serial number: %v", err)
			}
		})
	}
}

func TestLifetime(t *testing.T) {
	t.Parallel()

	root := newCA(t, "", nil, func(c *x509.Certificate) { c.NotAfter = now.Add(30 * time.Hour) })
	authority := mustNew(t, root)

	for name, tc := range map[string]struct {
		requestedAt time.Time
		lifetime    time.Duration
		want        time.Duration
	}{
		"none":             {now, 0, 24 * time.Hour},
		"as requested":     {now, time.Hour, time.Hour},
		"limited":          {now, 48 * time.Hour, 24 * time.Hour},
		"by the authority": {now.Add(28 * time.Hour), 0, 2 * time.Hour},
	} {
		got, err := authority.Issue(devid.Request{PublicArea: encodePublicArea(t, newECCPublicKey(t), nil), RequestedAt: tc.requestedAt, Lifetime: tc.lifetime})
		if err != nil || !got.NotAfter.Equal(tc.requestedAt.Add(tc.want)) {
			t.Errorf("%s: the certificate expires at %s (%v), want %s", name, got.NotAfter, err, tc.requestedAt.Add(tc.want))
		}
	}
}

// The chain ends below the root and does not include the root.
func TestIntermediate(t *testing.T) {
	t.Parallel()

	root := newCA(t, "", nil, func(c *x509.Certificate) { c.Subject.CommonName = "root" })
	middle := newCA(t, "", &root, nil)

	certificate, key := middle.encodePEM(t)
	top, _ := root.encodePEM(t)

	authority, err := devid.New(append(certificate, top...), key, now)
	if err != nil {
		t.Fatal(err)
	}

	got, err := authority.Issue(devid.Request{PublicArea: encodePublicArea(t, newECCPublicKey(t), nil), RequestedAt: now})
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
		"cannot sign":      {func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageCRLSign }, "keyCertSign"},
		"not valid yet":    {func(c *x509.Certificate) { c.NotBefore = now.Add(time.Minute) }, "correct the clock"},
		"expired":          {func(c *x509.Certificate) { c.NotAfter = now }, "renew it"},
	} {
		certificate, key := newCA(t, "", nil, tc.change).encodePEM(t)

		if _, err := devid.New(certificate, key, now); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want an error with %q", name, err, tc.want)
		}
	}

	certificate, _ := newCA(t, "", nil, nil).encodePEM(t)
	_, key := newCA(t, "", nil, nil).encodePEM(t)

	if _, err := devid.New(certificate, key, now); err == nil || strings.Contains(err.Error(), string(key)) {
		t.Errorf("new with the key of another authority = %v, want an error without the key", err)
	}

	if _, err := devid.New(nil, nil, now); err == nil {
		t.Error("new without certificate and key succeeded, want an error")
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
		t.Errorf("load without certificate = %v", err)
	}

	certificate, key := newCA(t, "", nil, nil).encodePEM(t)
	write(settings.CertFile, certificate)

	if _, err := devid.Load(settings, clock); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "keyFile") {
		t.Errorf("load without key = %v", err)
	}

	write(settings.KeyFile, key)

	if _, err := devid.Load(settings, clock); err != nil {
		t.Error(err)
	}

	clock.SetTime(now.Add(400 * 24 * time.Hour))

	if _, err := devid.Load(settings, clock); err == nil || !strings.Contains(err.Error(), settings.CertFile) {
		t.Errorf("load with an expired certificate = %v", err)
	}
}

func mustNew(t testing.TB, authority ca) *devid.Authority {
	t.Helper()

	certificate, key := authority.encodePEM(t)

	out, err := devid.New(certificate, key, now)
	if err != nil {
		t.Fatal(err)
	}

	return out
}
