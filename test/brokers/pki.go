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
	certLifetime = 24 * time.Hour
	serialBits   = 120
)

// CA is a test's certificate authority.
type CA struct {
	// File is the path of the CA's certificate in PEM.
	File string

	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Cert is a certificate and its private key in PEM files.
type Cert struct {
	CA            *CA
	File, KeyFile string
}

// NewCA creates a CA.
func NewCA(t testing.TB) *CA {
	t.Helper()

	template := newTemplate(t, "test CA", time.Now().Add(certLifetime))
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign

	key := newKey(t)
	ca := &CA{File: filepath.Join(t.TempDir(), "ca.pem"), cert: template, key: key}
	ca.cert = ca.sign(t, template, key, ca.File)

	return ca
}

// IssueServer issues a certificate for the host names and addresses. If names is empty, the certificate is
// for localhost and 127.0.0.1.
func (ca *CA) IssueServer(t testing.TB, names ...string) *Cert {
	t.Helper()

	return ca.issue(t, "server", time.Now().Add(certLifetime), names)
}

// IssueExpired issues a server certificate that has expired an hour ago.
func (ca *CA) IssueExpired(t testing.TB) *Cert {
	t.Helper()

	return ca.issue(t, "server", time.Now().Add(-time.Hour), nil)
}

// IssueClient issues a client certificate with a common name.
func (ca *CA) IssueClient(t testing.TB, name string) *Cert {
	t.Helper()

	return ca.issue(t, name, time.Now().Add(certLifetime), nil)
}

func (ca *CA) issue(t testing.TB, commonName string, notAfter time.Time, names []string) *Cert {
	t.Helper()

	if len(names) == 0 {
		names = []string{"localhost", "127.0.0.1"}
	}

	certTemplate := newTemplate(t, commonName, notAfter)
	certTemplate.KeyUsage = x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment // libvirt asks for both
	certTemplate.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}

	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			certTemplate.IPAddresses = append(certTemplate.IPAddresses, ip)
		} else {
			certTemplate.DNSNames = append(certTemplate.DNSNames, name)
		}
	}

	dir, key := t.TempDir(), newKey(t)
	out := &Cert{CA: ca, File: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem")}
	ca.sign(t, certTemplate, key, out.File)

	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}

	writeFile(t, out.KeyFile, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})))

	return out
}

// sign signs a certificate for the key, and writes the certificate to a file.
func (ca *CA) sign(t testing.TB, template *x509.Certificate, key *ecdsa.PrivateKey, file string) *x509.Certificate {
	t.Helper()

	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, key.Public(), ca.key)
	if err != nil {
		t.Fatal(err)
	}

	writeFile(t, file, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))

	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}

	return cert
}

func newTemplate(t testing.TB, commonName string, notAfter time.Time) *x509.Certificate {
	t.Helper()

	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), serialBits))
	if err != nil {
		t.Fatal(err)
	}

	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: commonName},
		NotBefore: notAfter.Add(-2 * certLifetime), NotAfter: notAfter,
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

func writeFile(t testing.TB, file, text string) {
	t.Helper()

	if err := os.WriteFile(file, []byte(text), ownerOnly); err != nil {
		t.Fatal(err)
	}
}
