// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/retry"
	"github.com/hyperfleet/hyperfleet/test/loopback"
)

// startServer starts the server and returns its address.
func startServer(t *testing.T, s *server) string {
	t.Helper()

	s.cfg.BindAddress, s.log = loopback.Address(t), slog.New(slog.DiscardHandler)
	s.handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })

	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)

	go func() { ended <- s.Start(ctx) }()

	t.Cleanup(func() {
		stop()

		if err := <-ended; err != nil {
			t.Error(err)
		}
	})

	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.cfg.BindAddress)
		if err == nil {
			_ = conn.Close()

			return s.cfg.BindAddress
		}

		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// TestReadyOnceItListens checks that a replica is not ready before it listens.
func TestReadyOnceItListens(t *testing.T) {
	t.Parallel()

	s := &server{}
	s.cfg.BindAddress = "127.0.0.1:1"

	if err := s.checkReady(nil); !errors.Is(err, errNotListening) {
		t.Errorf("before it listens: %v", err)
	}

	startServer(t, s)

	for deadline := time.Now().Add(time.Minute); s.checkReady(nil) != nil; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it listens, and is not ready")
		}
	}

	if err := (&server{cfg: config.Webhooks{BindAddress: "0"}}).checkReady(nil); err != nil {
		t.Errorf("without webhooks: %v", err)
	}
}

// TestRequestsWithoutCredentialsAreBounded checks that a caller cannot make the server keep a large header, or many requests
// on one connection.
func TestRequestsWithoutCredentialsAreBounded(t *testing.T) {
	t.Parallel()

	cluster := newCluster(t, "a", &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "hyperfleet-system", Name: authoritySecret}})
	address := startServer(t, &server{authority: newTestAuthority(t, cluster, clock.RealClock{})})

	send := func(headerSize int) *http.Response {
		caller := &http.Client{Timeout: time.Minute, Transport: &http.Transport{
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true,
		}}
		t.Cleanup(caller.CloseIdleConnections)

		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+address+"/webhooks/github", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}

		request.Header.Set("X-Filler", strings.Repeat("x", headerSize))

		response, err := caller.Do(request)
		if err != nil {
			t.Fatal(err)
		}

		_ = response.Body.Close()

		return response
	}

	if response := send(8 << 10); response.StatusCode != http.StatusNoContent || response.ProtoMajor != 1 {
		t.Errorf("a header of 8 KiB: %s %s, want 204 with HTTP/1.1", response.Proto, response.Status)
	}

	if response := send(64 << 10); response.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a header of 64 KiB: %s, want 431", response.Status)
	}
}

// presentedCertificate returns the certificate that a server presents to a new connection.
func presentedCertificate(t *testing.T, address string) *x509.Certificate {
	t.Helper()

	dialer := &tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}}

	conn, err := dialer.DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()

	secure, ok := conn.(*tls.Conn)
	if !ok {
		t.Fatalf("%T is no connection by TLS", conn)
	}

	return secure.ConnectionState().PeerCertificates[0]
}

// TestCertificateIsReadAgain checks that the server uses a renewed certificate without a restart.
func TestCertificateIsReadAgain(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	s := &server{cfg: config.Webhooks{CertFile: filepath.Join(dir, "tls.crt"), KeyFile: filepath.Join(dir, "tls.key")}}

	if _, err := s.tlsConfig(t.Context()); err == nil {
		t.Error("it starts without a certificate")
	}

	writeCertificate(t, s.cfg, 1)

	address := startServer(t, s)
	if got := presentedCertificate(t, address).SerialNumber.Int64(); got != 1 {
		t.Fatalf("it shows certificate %d", got)
	}

	writeCertificate(t, s.cfg, 2)

	for deadline := time.Now().Add(time.Minute); presentedCertificate(t, address).SerialNumber.Int64() != 2; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the old certificate is shown still")
		}
	}
}

// writeCertificate writes a certificate with the given serial number, and its key.
func writeCertificate(t *testing.T, to config.Webhooks, serial int64) {
	t.Helper()

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}

	template := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour)}

	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}

	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}

	for file, block := range map[string]*pem.Block{
		to.KeyFile: {Type: "PRIVATE KEY", Bytes: private}, to.CertFile: {Type: "CERTIFICATE", Bytes: certificate},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// What must not be lost may be written while the operator ends.
func TestWorkFitsIntoTheEnd(t *testing.T) {
	t.Parallel()

	if most := min(stopTimeout, drainTimeout); retry.EndGrace >= most {
		t.Errorf("writes may take %s at the end, and the operator waits for %s", retry.EndGrace, most)
	}
}
