// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package brokers

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
)

const (
	certLife   = 24 * time.Hour
	serialBits = 120
)

// CA signs certificates of a test.
type CA struct {
	// File has its certificate in PEM.
	File string

	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Cert is a certificate and its key, in PEM files.
type Cert struct {
	CA            *CA
	File, KeyFile string
}

// NewCA makes a CA.
func NewCA(t testing.TB) *CA {
	t.Helper()

	template := template(t, "test CA", time.Now().Add(certLife))
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign

	key := newKey(t)
	ca := &CA{File: filepath.Join(t.TempDir(), "ca.pem"), cert: template, key: key}
	ca.cert = ca.sign(t, template, key, ca.File)

	return ca
}

// Server issues a certificate for the host names and addresses, localhost and 127.0.0.1
// if there are none.
func (ca *CA) Server(t testing.TB, names ...string) *Cert {
	t.Helper()

	return ca.issue(t, "server", time.Now().Add(certLife), names)
}

// Expired issues a server's certificate that was valid until an hour ago.
func (ca *CA) Expired(t testing.TB) *Cert {
	t.Helper()

	return ca.issue(t, "server", time.Now().Add(-time.Hour), nil)
}

// Client issues a client's certificate with a common name.
func (ca *CA) Client(t testing.TB, name string) *Cert {
	t.Helper()

	return ca.issue(t, name, time.Now().Add(certLife), nil)
}

func (ca *CA) issue(t testing.TB, common string, until time.Time, names []string) *Cert {
	t.Helper()

	if len(names) == 0 {
		names = []string{"localhost", "127.0.0.1"}
	}

	leaf := template(t, common, until)
	leaf.KeyUsage = x509.KeyUsageDigitalSignature
	leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}

	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			leaf.IPAddresses = append(leaf.IPAddresses, ip)
		} else {
			leaf.DNSNames = append(leaf.DNSNames, name)
		}
	}

	dir, key := t.TempDir(), newKey(t)
	out := &Cert{CA: ca, File: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem")}
	ca.sign(t, leaf, key, out.File)

	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}

	write(t, out.KeyFile, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})))

	return out
}

// sign signs a certificate for the key, and writes it.
func (ca *CA) sign(t testing.TB, template *x509.Certificate, key *ecdsa.PrivateKey, file string) *x509.Certificate {
	t.Helper()

	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, key.Public(), ca.key)
	if err != nil {
		t.Fatal(err)
	}

	write(t, file, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))

	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}

	return cert
}

func template(t testing.TB, common string, until time.Time) *x509.Certificate {
	t.Helper()

	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), serialBits))
	if err != nil {
		t.Fatal(err)
	}

	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: common},
		NotBefore: until.Add(-2 * certLife), NotAfter: until,
	}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}

	return key
}

func write(t testing.TB, file, text string) {
	t.Helper()

	if err := os.WriteFile(file, []byte(text), ownerOnly); err != nil {
		t.Fatal(err)
	}
}
