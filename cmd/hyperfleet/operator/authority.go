// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
)

const (
	authoritySecret     = "hyperfleet-webhooks-ca" //nolint:gosec // the name of a Secret
	webhooksService     = "hyperfleet-webhooks"
	authorityLifetime   = 10 * 365 * 24 * time.Hour
	certificateLifetime = 90 * 24 * time.Hour
	// clockSkew is how far the clock of a machine may be behind.
	clockSkew = time.Hour
)

var (
	errNoAuthority      = errors.New("it has no CA certificate with its private key in PEM")
	errAuthorityExpired = errors.New("the CA certificate has expired")
)

// authority is the operator's own CA. It signs the certificate of the webhook server if the configuration
// names no certificate. The CA is in a Secret, so that all replicas use the same CA and machines trust it for
// their whole lifetime. Server certificates are kept in memory only.
type authority struct {
	clock         clock.PassiveClock
	caCertificate *x509.Certificate
	key           crypto.PrivateKey
	// pem is the CA certificate that machines receive. names are the host names and IP addresses in the
	// server certificate.
	pem   string
	names []string

	mu                sync.Mutex
	serverCertificate *tls.Certificate
}

// ensureAuthority reads the CA from its Secret. The first replica that starts creates the CA. It returns an
// error if the Secret has no valid CA or the CA certificate has expired.
func ensureAuthority(
	ctx context.Context, reader client.Reader, writer client.Writer, clk clock.PassiveClock, cfg config.OperatorConfig,
) (*authority, error) {
	data, err := ensureSecret(ctx, reader, writer, client.ObjectKey{Namespace: cfg.Namespace, Name: authoritySecret},
		corev1.TLSPrivateKeyKey, func() (map[string][]byte, error) { return newAuthority(clk.Now(), cfg.Namespace) })
	if err != nil {
		return nil, err
	}

	pair, err := tls.X509KeyPair(data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return nil, withRenewalHint(errNoAuthority)
	}

	if clk.Now().After(pair.Leaf.NotAfter) {
		return nil, withRenewalHint(errAuthorityExpired)
	}

	return &authority{
		clock: clk, caCertificate: pair.Leaf, key: pair.PrivateKey,
		pem: string(data[corev1.TLSCertKey]), names: serverNames(cfg),
	}, nil
}

func withRenewalHint(err error) error {
	return fmt.Errorf("%w: delete the data of the Secret, so that the operator creates a new CA at its next start "+
		"(machines that are running then can no longer report)", err)
}

// serverNames returns the host names of the webhook server: the names of its Service, and the hosts of
// guest.url and webhooks.url.
func serverNames(cfg config.OperatorConfig) []string {
	serviceDomain := webhooksService + "." + cfg.Namespace + ".svc"
	names := []string{webhooksService, serviceDomain, serviceDomain + ".cluster.local"}

	for _, text := range []string{cfg.Guest.URL, cfg.Webhooks.URL} {
		if u, err := url.Parse(text); err == nil && u.Hostname() != "" && !slices.Contains(names, u.Hostname()) {
			names = append(names, u.Hostname())
		}
	}

	return names
}

// newAuthority returns the data of a Secret with a new CA certificate, which signs itself, and its private
// key.
func newAuthority(now time.Time, namespace string) (map[string][]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate CA key: %w", err)
	}

	template := &x509.Certificate{
		Subject:   pkix.Name{CommonName: "HyperFleet in " + namespace},
		NotBefore: now.Add(-clockSkew), NotAfter: now.Add(authorityLifetime),
		KeyUsage: x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
	}

	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("create CA certificate: %w", err)
	}

	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode CA key: %w", err)
	}

	return map[string][]byte{
		corev1.TLSCertKey:       pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}),
		corev1.TLSPrivateKeyKey: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	}, nil
}

// getCertificate returns the server certificate. It signs a new one when a third of the lifetime is left.
func (a *authority) getCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()

	now := a.clock.Now()
	if a.serverCertificate != nil && now.Before(a.serverCertificate.Leaf.NotAfter.Add(-certificateLifetime/3)) {
		return a.serverCertificate, nil
	}

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate key of webhook server: %w", err)
	}

	template := &x509.Certificate{
		Subject:   pkix.Name{CommonName: webhooksService},
		NotBefore: now.Add(-clockSkew), NotAfter: now.Add(certificateLifetime),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}

	for _, name := range a.names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}

	der, err := x509.CreateCertificate(rand.Reader, template, a.caCertificate, &key.PublicKey, a.key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate of webhook server: %w", err)
	}

	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse certificate of webhook server: %w", err)
	}

	a.serverCertificate = &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}

	return a.serverCertificate, nil
}
