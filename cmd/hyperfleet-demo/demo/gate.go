// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strconv"
	"time"
)

// hostInside is this machine's loopback address as real machines see it (QEMU's user-mode
// network).
const hostInside = "10.0.2.2"

// gate is what it takes for real machines to reach what runs on this one: a certificate
// for the operator under the address that they know, and two proxies for who does not
// know it.
type gate struct {
	certFile, keyFile string
	// webhooks is where the CI platform sends its webhooks to. They go on to the operator
	// with TLS, whose certificate a CI platform would know.
	webhooks string
	servers  []*http.Server
}

// openGate makes the gate, if machines are real.
func (s *stack) openGate(ctx context.Context) error {
	if !s.options.real() {
		return nil
	}

	g := &gate{certFile: filepath.Join(s.dir, "operator.crt"), keyFile: filepath.Join(s.dir, "operator.key")}

	pool, err := g.certify(s.clock.Now(), s.options.inside())
	if err != nil {
		return err
	}

	operator := &url.URL{Scheme: "https", Host: s.forMachines(s.ports.webhooks)}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}
	s.gate = g

	g.webhooks, err = g.proxy(ctx, transport, func(r *httputil.ProxyRequest) { r.SetURL(operator) })

	return err
}

// forge gives the URL of the CI platform for the operator. GitHub tells runners the name
// that it was called by, so it is called by the one by which machines reach it.
func (g *gate) forge(ctx context.Context, platform, inside string) (string, error) {
	target, err := url.Parse(platform)
	if err != nil {
		return "", fmt.Errorf("read the CI platform's URL: %w", err)
	}

	through, err := g.proxy(ctx, &http.Transport{}, func(r *httputil.ProxyRequest) {
		r.SetURL(&url.URL{Scheme: target.Scheme, Host: target.Host})
		r.Out.Host = net.JoinHostPort(inside, target.Port())
	})

	return through + target.Path, err
}

// proxy starts a reverse proxy on a free port.
func (g *gate) proxy(ctx context.Context, transport http.RoundTripper, rewrite func(*httputil.ProxyRequest)) (string, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", loopback(0))
	if err != nil {
		return "", fmt.Errorf("start proxy: %w", err)
	}

	quiet := slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	server := &http.Server{
		Handler:           &httputil.ReverseProxy{Rewrite: rewrite, Transport: transport, ErrorLog: quiet},
		ReadHeaderTimeout: callTimeout, ErrorLog: quiet,
	}
	g.servers = append(g.servers, server)

	go func() { _ = server.Serve(listener) }() // until it is closed

	return "http://" + listener.Addr().String(), nil
}

// forMachines is an address to listen on for machines.
func (s *stack) forMachines(port int) string {
	return net.JoinHostPort(s.options.bindTo(), strconv.Itoa(port))
}

// close ends the proxies.
func (g *gate) close() error {
	if g == nil {
		return nil
	}

	var errs []error
	for _, server := range g.servers {
		errs = append(errs, server.Close())
	}

	return errors.Join(errs...)
}

// certLifetime is longer than any run.
const certLifetime = 24 * time.Hour

// certify writes a certificate that is its own authority, for the loopback interface and the
// address that machines know.
func (g *gate) certify(now time.Time, inside string) (*x509.CertPool, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the operator's key: %w", err)
	}

	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "hyperfleet-demo"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(certLifetime),
		IPAddresses: []net.IP{net.ParseIP(inside), net.IPv4(127, 0, 0, 1)}, //nolint:mnd // loopback
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
	}

	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("make the operator's certificate: %w", err)
	}

	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("make the operator's key: %w", err)
	}

	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(cert)

	return pool, errors.Join(
		writePrivate(g.certFile, cert),
		writePrivate(g.keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})),
	)
}

// guestURL is where machines reach the operator.
func (s *stack) guestURL() string {
	if s.gate != nil {
		return "https://" + net.JoinHostPort(s.options.inside(), strconv.Itoa(s.ports.webhooks))
	}

	return "http://" + loopback(s.ports.webhooks)
}

// hooksURL is where the CI platform reaches the operator.
func (s *stack) hooksURL() string {
	if s.gate != nil {
		return s.gate.webhooks
	}

	return s.guestURL()
}
