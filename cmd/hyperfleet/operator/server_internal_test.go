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
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/operator/fence"
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

		s.wait()
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

	if retry.EndGrace >= stopTimeout {
		t.Errorf("controllers may write for %s at the end, and the operator waits for %s", retry.EndGrace, stopTimeout)
	}

	if longest := requestGrace + retry.EndGrace; longest >= drainTimeout {
		t.Errorf("requests may take %s at the end, and the operator waits for %s", longest, drainTimeout)
	}
}

// newHeldServer returns a server whose requests last until their context or released ends.
func newHeldServer(t *testing.T, released <-chan struct{}) (held *server, contextEnded chan struct{}) {
	t.Helper()

	contextEnded = make(chan struct{})
	held = &server{cfg: config.Webhooks{BindAddress: loopback.Address(t)}, log: slog.New(slog.DiscardHandler)}
	held.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush() // the client sees that the request is open

		select {
		case <-released:
		case <-r.Context().Done():
			close(contextEnded)
		}
	})

	return held, contextEnded
}

// openRequest opens a request to a server that starts, and leaves it open.
func openRequest(t *testing.T, s *server) {
	t.Helper()

	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.cfg.BindAddress, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}

		response, err := http.DefaultTransport.RoundTrip(request)
		if err == nil {
			t.Cleanup(func() { _ = response.Body.Close() })

			return
		}

		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// The controllers write their statuses at the end while a request is open, for example that of a machine that downloads
// the bootstrap service on a slow line.
func TestControllersEndBesideAnOpenRequest(t *testing.T) {
	t.Parallel()

	cfg := config.Default()
	cfg.Namespace, cfg.LeaderElection.Enabled = metav1.NamespaceDefault, false
	cfg.Metrics.BindAddress, cfg.Health.BindAddress = "0", "0"

	mgr, err := newManager(t.Context(), cfg, rest.CopyConfig(env.Config), fence.New(clock.RealClock{}, cfg.LeaderElection.LeaseDuration))
	if err != nil {
		t.Fatal(err)
	}

	controllersEnded, released := make(chan struct{}), make(chan struct{})
	held, _ := newHeldServer(t, released)

	for _, runnable := range []manager.Runnable{held, manager.RunnableFunc(func(ctx context.Context) error {
		<-ctx.Done()
		close(controllersEnded)

		return nil
	})} {
		if err := mgr.Add(runnable); err != nil {
			t.Fatal(err)
		}
	}

	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)

	go func() { ended <- mgr.Start(ctx) }()

	openRequest(t, held)
	stop()

	if err := <-ended; err != nil {
		t.Errorf("the manager ended while a request was open: %v", err)
	}

	select {
	case <-controllersEnded:
	default:
		t.Error("the manager ended before the controllers")
	}

	close(released)
	held.wait()
}

// The context of an open request ends before the operator gives up waiting for the request, so that the handler can still
// write what must not be lost.
func TestOpenRequestEndsWithTheOperator(t *testing.T) {
	t.Parallel()

	held, contextEnded := newHeldServer(t, nil)
	ended := make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())

	go func() { ended <- held.Start(ctx) }()

	openRequest(t, held)
	stop()

	if err := <-ended; err != nil {
		t.Fatal(err)
	}

	held.wait()

	select {
	case <-contextEnded:
	default:
		t.Error("the operator stopped waiting for the request, whose context had not ended")
	}
}
