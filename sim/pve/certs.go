// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"strings"
	"time"
)

// certs holds the cluster's CA and the certificate of the API.
type certs struct {
	caPEM       []byte
	server      tls.Certificate
	fingerprint string
}

func newCerts(nodes []Node, clusterID string) (*certs, error) {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("create CA key: %w", err)
	}
	ca := newCertTemplate(1, "Proxmox Virtual Environment")
	ca.Subject.OrganizationalUnit, ca.Subject.Organization = []string{clusterID}, []string{"PVE Cluster Manager CA"}
	ca.IsCA, ca.BasicConstraintsValid = true, true
	ca.KeyUsage = x509.KeyUsageCertSign
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	if err != nil {
		return nil, fmt.Errorf("sign CA: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("create server key: %w", err)
	}
	leaf := newCertTemplate(2, nodes[0].Name)
	leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	leaf.KeyUsage = x509.KeyUsageDigitalSignature
	leaf.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	leaf.DNSNames = []string{"localhost"}
	for _, n := range nodes {
		leaf.DNSNames = append(leaf.DNSNames, n.Name)
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca, key.Public(), caKey)
	if err != nil {
		return nil, fmt.Errorf("sign server certificate: %w", err)
	}
	return &certs{
		caPEM:       pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER}),
		server:      tls.Certificate{Certificate: [][]byte{der, caDER}, PrivateKey: key},
		fingerprint: computeFingerprint(der),
	}, nil
}

func newCertTemplate(serial int64, name string) *x509.Certificate {
	now := time.Now()
	const day = 24 * time.Hour
	return &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name},
		NotBefore: now.Add(-day), NotAfter: now.Add(365 * day),
	}
}

func computeFingerprint(der []byte) string {
	sum := sha256.Sum256(der)
	hex := make([]string, len(sum))
	for i, b := range sum {
		hex[i] = fmt.Sprintf("%02X", b)
	}
	return strings.Join(hex, ":")
}
