// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package external_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/example"
	"github.com/hyperfleet/hyperfleet/hypervisor/external"
	"github.com/hyperfleet/hyperfleet/hypervisor/external/server"
	"github.com/hyperfleet/hyperfleet/kit/procrun"
)

// authority signs certificates in PEM.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T) *authority {
	t.Helper()

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}

	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}

	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}

	template.Raw = der

	return &authority{t: t, cert: template, key: key, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

func (a *authority) issue() (certPEM, keyPEM []byte) {
	a.t.Helper()

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}

	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "leaf"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}

	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}

	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}

	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})
}

// Only a client whose certificate the program trusts gets a session, and only of a program that the client trusts.
func TestTLS(t *testing.T) {
	t.Parallel()

	trusted, other := newAuthority(t), newAuthority(t)
	folder := t.TempDir()
	write := func(name string, text []byte) string {
		file := filepath.Join(folder, name)
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}

		return file
	}

	address, err := procrun.PickAddress()
	if err != nil {
		t.Fatal(err)
	}

	cert, key := trusted.issue()
	serve(t, server.Options{
		Address: address, CertFile: write("cert", cert), KeyFile: write("key", key), ClientCAFile: write("ca", trusted.pem),
	}, server.Program{
		New: func(config hypervisor.Config, options hypervisor.Options) (hypervisor.Connection, error) {
			return example.Connect(example.NewCloud(""), config, options)
		},
	})

	check := func(clientOf, serverOf *authority) error {
		certPEM, keyPEM := clientOf.issue()

		config, err := hypervisor.NewTLSConfig(&v1alpha1.HypervisorTLS{CABundle: serverOf.pem}, certPEM, keyPEM)
		if err != nil {
			t.Fatal(err)
		}

		p, err := external.New(hypervisor.Config{Name: "c", Address: address, TLS: config}, hypervisor.Options{OperatorUID: "o"})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()

		_, err = p.Check(t.Context())

		return err
	}

	if err := check(trusted, trusted); err != nil {
		t.Error(err)
	}

	checkError(t, check(other, trusted), hypervisor.Unavailable, "ProviderUnavailable", "certificates")
	checkError(t, check(trusted, other), hypervisor.Unavailable, "ProviderUnavailable", "certificates")
}
