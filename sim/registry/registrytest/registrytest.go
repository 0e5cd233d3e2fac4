// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package registrytest

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/sim/registry"
)

// Server is a simulated registry with its address and its CA certificate.
type Server struct {
	*registry.Server

	// Host is the registry's host:port, with which the reference of an image begins.
	Host string
	// CA is the CA certificate in PEM format that verifies the registry.
	CA []byte
}

// New serves a registry until the test ends. The test fails if the registry has recorded a
// violation.
func New(t testing.TB, options registry.Options) *Server {
	t.Helper()

	server := registry.New(options)
	httpServer := httptest.NewTLSServer(server)

	t.Cleanup(func() {
		httpServer.Close()

		for _, violation := range server.Violations() {
			t.Errorf("registry: violation: %s", violation)
		}
	})

	return &Server{
		Server: server, Host: strings.TrimPrefix(httpServer.URL, "https://"),
		CA: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: httpServer.Certificate().Raw}),
	}
}

// CAFile writes the CA certificate to a file in a temporary directory of the test and returns the
// path.
func (s *Server) CAFile(t testing.TB) string {
	t.Helper()

	path := filepath.Join(t.TempDir(), "registry-ca.pem")
	if err := os.WriteFile(path, s.CA, 0o600); err != nil {
		t.Fatal(err)
	}

	return path
}

// PullSecret returns a Docker configuration that logs in to the registry.
func (s *Server) PullSecret(user, password string) string {
	auth := base64.StdEncoding.EncodeToString([]byte(user + ":" + password))

	text, err := json.Marshal(map[string]any{"auths": map[string]any{s.Host: map[string]string{"auth": auth}}})
	if err != nil {
		panic(err) // strings can always be encoded
	}

	return string(text)
}
