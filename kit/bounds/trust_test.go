// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bounds_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/test/brokers"
)

// TestRenewedAuthority checks that a transport trusts the CAs that its file has now, and the last ones while the file is
// unreadable, and that it still speaks HTTP/2.
func TestRenewedAuthority(t *testing.T) {
	t.Parallel()

	old, renewed := brokers.NewCA(t), brokers.NewCA(t)
	file := filepath.Join(t.TempDir(), "ca.crt")
	copyFile(t, old.File, file)

	transport := bounds.NewTransport()
	if err := bounds.TrustFile(transport, file, nil); err != nil {
		t.Fatal(err)
	}

	call := func(ca *brokers.CA) error {
		t.Helper()

		server := startTLS(t, ca.IssueServer(t))

		resp, err := (&http.Client{Transport: transport}).Get(server.URL)
		if err != nil {
			return err
		}

		if resp.ProtoMajor != 2 {
			t.Errorf("protocol %s, want HTTP/2", resp.Proto)
		}

		return resp.Body.Close()
	}

	if err := call(old); err != nil {
		t.Errorf("with the CA of the start: %v", err)
	}

	if _, isUnknown := errors.AsType[x509.UnknownAuthorityError](call(renewed)); !isUnknown {
		t.Error("a CA that is not in the file is trusted")
	}

	copyFile(t, renewed.File, file)

	if err := call(renewed); err != nil {
		t.Errorf("with the renewed CA: %v", err)
	}

	if _, isUnknown := errors.AsType[x509.UnknownAuthorityError](call(old)); !isUnknown {
		t.Error("the former CA is still trusted")
	}

	if err := os.WriteFile(file, []byte("half of a"), 0o600); err != nil {
		t.Fatal(err)
	}

	if err := call(renewed); err != nil {
		t.Errorf("with an unreadable file: %v", err)
	}
}

// startTLS starts a server with the certificate and HTTP/2.
func startTLS(t *testing.T, cert *brokers.Cert) *httptest.Server {
	t.Helper()

	pair, err := tls.LoadX509KeyPair(cert.File, cert.KeyFile)
	if err != nil {
		t.Fatal(err)
	}

	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)

	return server
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()

	text, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, text, 0o600)
	}

	if err != nil {
		t.Fatal(err)
	}
}
