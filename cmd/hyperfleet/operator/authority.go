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
	authoritySecret  = "hyperfleet-webhooks-ca" //nolint:gosec // the name of a Secret
	webhooksService  = "hyperfleet-webhooks"
	authorityLasts   = 10 * 365 * 24 * time.Hour
	certificateLasts = 90 * 24 * time.Hour
	// slack is how far a machine's clock may be behind.
	slack = time.Hour
)

var (
	errNoAuthority    = errors.New("it holds no certificate and its key in PEM")
	errAuthorityEnded = errors.New("it has ended")
)

// authority signs the certificate that CI platforms and machines are shown where nobody has
// given the operator one. It is in a Secret, so that all replicas have the same one and machines
// trust it as long as they live; what it signs is in memory alone.
type authority struct {
	clock       clock.PassiveClock
	certificate *x509.Certificate
	key         crypto.PrivateKey
	// pem is the certificate as machines get it, and names are those that it signs for.
	pem   string
	names []string

	mu    sync.Mutex
	shown *tls.Certificate
}

// readAuthority reads it, or makes it at the first start of the first replica.
func readAuthority(
	ctx context.Context, reader client.Reader, writer client.Writer, now clock.PassiveClock, cfg config.OperatorConfig,
) (*authority, error) {
	data, err := kept(ctx, reader, writer, client.ObjectKey{Namespace: cfg.Namespace, Name: authoritySecret},
		corev1.TLSPrivateKeyKey, func() (map[string][]byte, error) { return newAuthority(now.Now(), cfg.Namespace) })
	if err != nil {
		return nil, err
	}

	pair, err := tls.X509KeyPair(data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return nil, renewable(errNoAuthority)
	}

	if now.Now().After(pair.Leaf.NotAfter) {
		return nil, renewable(errAuthorityEnded)
	}

	return &authority{
		clock: now, certificate: pair.Leaf, key: pair.PrivateKey,
		pem: string(data[corev1.TLSCertKey]), names: namesOf(cfg),
	}, nil
}

func renewable(err error) error {
	return fmt.Errorf("%w: take the data out of the secret, a new authority is made at the next start, "+
		"and machines that run then can't report any more", err)
}

// namesOf are the hosts that the server is called by.
func namesOf(cfg config.OperatorConfig) []string {
	inside := webhooksService + "." + cfg.Namespace + ".svc"
	names := []string{webhooksService, inside, inside + ".cluster.local"}

	for _, text := range []string{cfg.Guest.URL, cfg.Webhooks.URL} {
		if u, err := url.Parse(text); err == nil && u.Hostname() != "" && !slices.Contains(names, u.Hostname()) {
			names = append(names, u.Hostname())
		}
	}

	return names
}

func newAuthority(now time.Time, namespace string) (map[string][]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make its key: %w", err)
	}

	template := &x509.Certificate{
		Subject:   pkix.Name{CommonName: "HyperFleet in " + namespace},
		NotBefore: now.Add(-slack), NotAfter: now.Add(authorityLasts),
		KeyUsage: x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
	}

	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("sign its certificate: %w", err)
	}

	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("write its key: %w", err)
	}

	return map[string][]byte{
		corev1.TLSCertKey:       pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}),
		corev1.TLSPrivateKeyKey: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	}, nil
}

// show gives the certificate to show, and makes another before it ends.
func (a *authority) show(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()

	now := a.clock.Now()
	if a.shown != nil && now.Before(a.shown.Leaf.NotAfter.Add(-certificateLasts/3)) {
		return a.shown, nil
	}

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the webhook server's key: %w", err)
	}

	template := &x509.Certificate{
		Subject:   pkix.Name{CommonName: webhooksService},
		NotBefore: now.Add(-slack), NotAfter: now.Add(certificateLasts),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}

	for _, name := range a.names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}

	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, &key.PublicKey, a.key)
	if err != nil {
		return nil, fmt.Errorf("sign the webhook server's certificate: %w", err)
	}

	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read the webhook server's certificate: %w", err)
	}

	a.shown = &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}

	return a.shown, nil
}
