// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeproc

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"
)

const (
	certValidity = 7 * 24 * time.Hour
	// maxClockSkew is subtracted from the start of a certificate's validity, for clocks that are slow.
	maxClockSkew = 5 * time.Minute
	privateMode  = 0o600
	// Names of the files of the CA.
	caCert = "ca.crt"
	caKey  = "ca.key"
)

// authority is the CA of one control plane.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

// keyPair is a certificate with its key, both in PEM.
type keyPair struct {
	cert, key []byte
}

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate CA key: %w", err)
	}

	template := newTemplate(pkix.Name{CommonName: "hyperfleet-local-ca"})
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature

	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign CA certificate: %w", err)
	}

	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse CA certificate: %w", err)
	}

	return &authority{cert: cert, key: key, pem: encodePEM("CERTIFICATE", der)}, nil
}

var errNotAnAuthority = errors.New("not a CA certificate and key of a control plane")

// readAuthority reads a CA from the files that writeFiles wrote.
func readAuthority(certFile, keyFile string) (*authority, error) {
	certPEM, err := os.ReadFile(certFile)
	if err != nil {
		return nil, fmt.Errorf("read CA: %w", err)
	}

	keyPEM, err := os.ReadFile(keyFile)
	if err != nil {
		return nil, fmt.Errorf("read CA: %w", err)
	}

	certBlock, _ := pem.Decode(certPEM)
	keyBlock, _ := pem.Decode(keyPEM)

	if certBlock == nil || keyBlock == nil {
		return nil, fmt.Errorf("read CA %s: %w", certFile, errNotAnAuthority)
	}

	cert, err := x509.ParseCertificate(certBlock.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read CA %s: %w", certFile, err)
	}

	key, err := x509.ParsePKCS8PrivateKey(keyBlock.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read CA %s: %w", keyFile, err)
	}

	private, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("read CA %s: %w", keyFile, errNotAnAuthority)
	}

	return &authority{cert: cert, key: private, pem: certPEM}, nil
}

// privateKey returns the CA's key in PEM, for the controller that signs certificates.
func (a *authority) privateKey() ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err != nil {
		return nil, fmt.Errorf("encode CA key: %w", err)
	}

	return encodePEM("PRIVATE KEY", der), nil
}

// newServerCertificate creates a server certificate for the loopback address and the names of the
// kubernetes Service.
func (a *authority) newServerCertificate() (keyPair, error) {
	template := newTemplate(pkix.Name{CommonName: "kube-apiserver"})
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	template.DNSNames = []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"}
	template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}

	return a.sign(template)
}

// newClientCertificate creates a certificate with which a client authenticates as the user and groups.
func (a *authority) newClientCertificate(user string, groups []string) (keyPair, error) {
	template := newTemplate(pkix.Name{CommonName: user, Organization: groups})
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}

	return a.sign(template)
}

func (a *authority) sign(template *x509.Certificate) (keyPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return keyPair{}, fmt.Errorf("generate key of %s: %w", template.Subject, err)
	}

	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return keyPair{}, fmt.Errorf("sign certificate of %s: %w", template.Subject, err)
	}

	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return keyPair{}, fmt.Errorf("encode key of %s: %w", template.Subject, err)
	}

	return keyPair{cert: encodePEM("CERTIFICATE", der), key: encodePEM("PRIVATE KEY", keyDER)}, nil
}

// newSigningKey generates the key pair with which the API server signs and verifies the tokens of
// service accounts.
func newSigningKey() (private, public []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("generate service account key: %w", err)
	}

	privateDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encode service account key: %w", err)
	}

	publicDER, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, nil, fmt.Errorf("encode service account key: %w", err)
	}

	return encodePEM("PRIVATE KEY", privateDER), encodePEM("PUBLIC KEY", publicDER), nil
}

// newTemplate returns a certificate template without a serial number. Package x509 generates the
// serial number.
func newTemplate(subject pkix.Name) *x509.Certificate {
	now := time.Now()

	return &x509.Certificate{
		Subject: subject, KeyUsage: x509.KeyUsageDigitalSignature,
		NotBefore: now.Add(-maxClockSkew), NotAfter: now.Add(certValidity),
	}
}

func encodePEM(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// writeFiles writes files that only the owner can read to dir.
func writeFiles(dir string, files map[string][]byte) error {
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), data, privateMode); err != nil {
			return fmt.Errorf("write control plane files: %w", err)
		}
	}

	return nil
}
