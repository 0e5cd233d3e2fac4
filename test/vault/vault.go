// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package vault

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/vault/api"

	"github.com/hyperfleet/hyperfleet/kit/procrun"
)

const (
	program      = "test-vault"
	startTimeout = time.Minute
	grace        = 3 * time.Second
	ownerOnly    = 0o600
)

// Server is a running Vault.
type Server struct {
	// Address is the base URL of the server.
	Address string
	// CABundle is the CA bundle in PEM that verifies the server's certificate.
	CABundle string
	// Client is a client with the root token.
	Client *api.Client

	process *procrun.Process
}

// Start starts a Vault with only its default mounts until the test ends, and returns when Vault responds.
func Start(t testing.TB) *Server {
	t.Helper()

	dir := t.TempDir()
	server := &Server{CABundle: writeCertificate(t, dir)}
	logPath := filepath.Join(dir, "vault.log")

	bin, err := procrun.FindBinaries(program)
	if err != nil {
		t.Fatalf("find %s: %v: run hack/setup.sh vault to build it", program, err)
	}

	server.process, err = procrun.Start(context.Background(), procrun.Spec{
		Path: filepath.Join(bin, program), Dir: dir, LogPath: logPath, GracePeriod: grace,
		Args: []string{
			"-listen", "127.0.0.1:0", "-tls-cert", filepath.Join(dir, "cert.pem"), "-tls-key", filepath.Join(dir, "key.pem"),
		},
	})
	if err != nil {
		t.Fatalf("start %s: %v", program, err)
	}

	t.Cleanup(func() {
		server.Stop(t)

		if data, err := os.ReadFile(logPath); t.Failed() && err == nil {
			t.Logf("vault.log:\n%s", data)
		}
	})

	token := server.waitReady(t, logPath)
	server.Client = server.newClient(t, dir, token)

	return server
}

// Stop stops Vault, which deletes all its data. It does nothing if Vault has already ended.
func (s *Server) Stop(t testing.TB) {
	t.Helper()

	if err := s.process.Stop(); err != nil {
		t.Errorf("stop %s: %v", program, err)
	}
}

// waitReady waits for the log line with Vault's address, sets Address, and returns the root token.
func (s *Server) waitReady(t testing.TB, logPath string) string {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()

	var ready struct {
		Address   string `json:"address"`
		RootToken string `json:"rootToken"`
	}

	err := s.process.WaitReady(ctx, func(context.Context) error {
		file, err := os.Open(logPath)
		if err != nil {
			return fmt.Errorf("open log: %w", err)
		}

		defer file.Close() //nolint:errcheck // the file is only read

		for lines := bufio.NewScanner(file); lines.Scan(); {
			if json.Unmarshal(lines.Bytes(), &ready) == nil && ready.RootToken != "" {
				return nil
			}
		}

		return errors.New("the server is not ready yet")
	})
	if err != nil {
		t.Fatalf("start %s: %v", program, err)
	}

	s.Address = ready.Address

	return ready.RootToken
}

func (s *Server) newClient(t testing.TB, dir, token string) *api.Client {
	t.Helper()

	config := api.DefaultConfig()
	config.Address = s.Address

	if err := config.ConfigureTLS(&api.TLSConfig{CACert: filepath.Join(dir, "cert.pem")}); err != nil {
		t.Fatal(err)
	}

	client, err := api.NewClient(config)
	if err != nil {
		t.Fatal(err)
	}

	client.SetToken(token)
	t.Cleanup(func() { config.HttpClient.CloseIdleConnections() })

	return client
}

// Write writes to a path of the HTTP API as root.
func (s *Server) Write(t testing.TB, path string, data map[string]any) {
	t.Helper()

	if _, err := s.Client.Logical().WriteWithContext(t.Context(), path, data); err != nil {
		t.Fatalf("write %s: %v", path, err)
	}
}

// Delete deletes a path of the HTTP API as root.
func (s *Server) Delete(t testing.TB, path string) {
	t.Helper()

	if _, err := s.Client.Logical().DeleteWithContext(t.Context(), path); err != nil {
		t.Fatalf("delete %s: %v", path, err)
	}
}

// MountKV mounts a key-value engine of version 1 or 2, and returns when the engine accepts secrets.
func (s *Server) MountKV(t testing.TB, mount string, version int) {
	t.Helper()
	s.Write(t, "sys/mounts/"+mount, map[string]any{"type": "kv", "options": map[string]string{"version": strconv.Itoa(version)}})

	if version == 1 {
		return
	}

	// Version 2 is ready after about a second.
	for end := time.Now().Add(startTimeout); ; time.Sleep(50 * time.Millisecond) {
		_, err := s.Client.Logical().ReadWithContext(t.Context(), mount+"/config")
		if err == nil {
			return
		}

		if time.Now().After(end) {
			t.Fatalf("mount %s: %v", mount, err)
		}
	}
}

// WriteKV writes a secret of a key-value engine of version 2.
func (s *Server) WriteKV(t testing.TB, mount, name string, data map[string]any) {
	t.Helper()
	s.Write(t, mount+"/data/"+name, map[string]any{"data": data})
}

// WritePolicy writes a policy in Vault's policy language.
func (s *Server) WritePolicy(t testing.TB, name, rules string) {
	t.Helper()
	s.Write(t, "sys/policies/acl/"+name, map[string]any{"policy": rules})
}

// EnableJWT mounts the auth method jwt. The method verifies tokens of the issuer with the key set at the URL.
func (s *Server) EnableJWT(t testing.TB, mount, jwksURL, issuer string) {
	t.Helper()
	s.Write(t, "sys/auth/"+mount, map[string]any{"type": "jwt"})
	s.Write(t, "auth/"+mount+"/config", map[string]any{"jwks_url": jwksURL, "bound_issuer": issuer})
}

// WriteJWTRole writes a role that lets identities whose SPIFFE ID matches a glob pattern log in. Their
// tokens have the policies.
func (s *Server) WriteJWTRole(t testing.TB, mount, role, audience, pattern string, policies ...string) {
	t.Helper()
	s.Write(t, "auth/"+mount+"/role/"+role, map[string]any{
		"role_type": "jwt", "bound_audiences": []string{audience}, "user_claim": "sub",
		"bound_claims_type": "glob", "bound_claims": map[string]string{"sub": pattern},
		"token_policies": policies, "token_ttl": "5m",
	})
}

// EnableCert mounts the auth method cert.
func (s *Server) EnableCert(t testing.TB, mount string) {
	t.Helper()
	s.Write(t, "sys/auth/"+mount, map[string]any{"type": "cert"})
}

// WriteCertRole writes a role that lets identities log in whose certificate the bundle verifies and whose
// SPIFFE ID matches a glob pattern. Their tokens have the policies.
func (s *Server) WriteCertRole(t testing.TB, mount, role, bundle, pattern string, policies ...string) {
	t.Helper()
	s.Write(t, "auth/"+mount+"/certs/"+role, map[string]any{
		"certificate": bundle, "allowed_uri_sans": pattern, "token_policies": policies, "token_ttl": "5m",
	})
}

// ServeJWKS serves a key set as an OIDC discovery provider does, and returns the URL of the key set.
func ServeJWKS(t testing.TB, keys func() []byte) string {
	t.Helper()

	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(keys())
	}))
	t.Cleanup(server.Close)

	return server.URL + "/keys"
}

// writeCertificate writes a self-signed certificate for the loopback interface and its key into a
// directory, and returns the certificate in PEM.
func writeCertificate(t testing.TB, dir string) string {
	t.Helper()

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}

	const lifetime = 24 * time.Hour

	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: program},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(lifetime),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}

	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}

	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}

	var bundle strings.Builder
	if err := pem.Encode(&bundle, &pem.Block{Type: "CERTIFICATE", Bytes: der}); err != nil {
		t.Fatal(err)
	}

	for name, data := range map[string][]byte{
		"cert.pem": []byte(bundle.String()), "key.pem": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, ownerOnly); err != nil {
			t.Fatal(err)
		}
	}

	return bundle.String()
}
