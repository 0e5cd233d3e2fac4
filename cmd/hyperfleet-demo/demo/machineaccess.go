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

// qemuHostAddress is the address at which guests in QEMU's user-mode network reach the loopback interface
// of this computer.
const qemuHostAddress = "10.0.2.2"

// machineAccess lets real machines reach the operator and forgesim on this computer. It has a
// certificate of the operator for the address that machines use, and two reverse proxies: one through
// which forgesim reaches the operator, and one through which the operator reaches forgesim.
type machineAccess struct {
	certFile, keyFile string
	// webhookURL is the URL to which forgesim sends webhooks. The proxy forwards them to the operator over
	// TLS, because forgesim does not trust the operator's certificate.
	webhookURL string
	proxies    []*http.Server
}

// openMachineAccess creates the certificate and starts the webhook proxy if machines are real.
func (s *stack) openMachineAccess(ctx context.Context) error {
	if !s.options.hasRealMachines() {
		return nil
	}

	a := &machineAccess{certFile: filepath.Join(s.dir, "operator.crt"), keyFile: filepath.Join(s.dir, "operator.key")}

	pool, err := a.writeCertificate(s.clock.Now(), s.options.hostAddress())
	if err != nil {
		return err
	}

	operator := &url.URL{Scheme: "https", Host: s.machineListenAddress(s.ports.webhooks)}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}
	s.machineAccess = a

	a.webhookURL, err = a.startProxy(ctx, transport, func(r *httputil.ProxyRequest) { r.SetURL(operator) })

	return err
}

// proxyForge starts a proxy to the CI platform and returns its URL for the operator. The proxy sets the Host
// header to hostIP, the address at which machines reach this computer. GitHub passes the host of a request on
// to the runner.
func (a *machineAccess) proxyForge(ctx context.Context, platform, hostIP string) (string, error) {
	target, err := url.Parse(platform)
	if err != nil {
		return "", fmt.Errorf("parse the CI platform's URL: %w", err)
	}

	proxyURL, err := a.startProxy(ctx, &http.Transport{}, func(r *httputil.ProxyRequest) {
		r.SetURL(&url.URL{Scheme: target.Scheme, Host: target.Host})
		r.Out.Host = net.JoinHostPort(hostIP, target.Port())
	})

	return proxyURL + target.Path, err
}

// startProxy starts a reverse proxy on a free loopback port and returns its URL.
func (a *machineAccess) startProxy(
	ctx context.Context, transport http.RoundTripper, rewrite func(*httputil.ProxyRequest),
) (string, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", loopbackHostPort(0))
	if err != nil {
		return "", fmt.Errorf("start proxy: %w", err)
	}

	quiet := slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	server := &http.Server{
		Handler:           &httputil.ReverseProxy{Rewrite: rewrite, Transport: transport, ErrorLog: quiet},
		ReadHeaderTimeout: callTimeout, ErrorLog: quiet,
	}
	a.proxies = append(a.proxies, server)

	go func() { _ = server.Serve(listener) }() // until it is closed

	return "http://" + listener.Addr().String(), nil
}

// machineListenAddress returns the address and port on which a server for machines listens.
func (s *stack) machineListenAddress(port int) string {
	return net.JoinHostPort(s.options.listenAddress(), strconv.Itoa(port))
}

// close stops the proxies. It does nothing if a is nil.
func (a *machineAccess) close() error {
	if a == nil {
		return nil
	}

	var errs []error
	for _, proxy := range a.proxies {
		errs = append(errs, proxy.Close())
	}

	return errors.Join(errs...)
}

// certLifetime is longer than any run.
const certLifetime = 24 * time.Hour

// writeCertificate writes a self-signed certificate and its key, for the loopback address and hostIP, the address
// at which machines reach this computer. It returns an x509.CertPool with the certificate.
func (a *machineAccess) writeCertificate(now time.Time, hostIP string) (*x509.CertPool, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("create the operator's key: %w", err)
	}

	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "hyperfleet-demo"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(certLifetime),
		IPAddresses: []net.IP{net.ParseIP(hostIP), net.IPv4(127, 0, 0, 1)}, //nolint:mnd // loopback
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
	}

	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("create the operator's certificate: %w", err)
	}

	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode the operator's key: %w", err)
	}

	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(cert)

	return pool, errors.Join(
		writePrivateFile(a.certFile, cert),
		writePrivateFile(a.keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})),
	)
}

// guestURL returns the URL at which machines reach the operator.
func (s *stack) guestURL() string {
	if s.machineAccess != nil {
		return "https://" + net.JoinHostPort(s.options.hostAddress(), strconv.Itoa(s.ports.webhooks))
	}

	return "http://" + loopbackHostPort(s.ports.webhooks)
}

// webhookBaseURL returns the URL at which the CI platform reaches the operator.
func (s *stack) webhookBaseURL() string {
	if s.machineAccess != nil {
		return s.machineAccess.webhookURL
	}

	return s.guestURL()
}
