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

// Server is a registry that is served.
type Server struct {
	*registry.Server

	// Host is its host:port, as an image's reference begins.
	Host string
	// CA verifies it, in PEM.
	CA []byte
}

// New serves a registry until the test ends. The test fails if somebody asked it for
// something that no client of a registry asks for.
func New(t testing.TB, options registry.Options) *Server {
	t.Helper()

	server := registry.New(options)
	served := httptest.NewTLSServer(server)

	t.Cleanup(func() {
		served.Close()

		for _, what := range server.Violations() {
			t.Errorf("registry: violation: %s", what)
		}
	})

	return &Server{
		Server: server, Host: strings.TrimPrefix(served.URL, "https://"),
		CA: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: served.Certificate().Raw}),
	}
}

// CAFile writes the CA to a file of the test.
func (s *Server) CAFile(t testing.TB) string {
	t.Helper()

	path := filepath.Join(t.TempDir(), "registry-ca.pem")
	if err := os.WriteFile(path, s.CA, 0o600); err != nil {
		t.Fatal(err)
	}

	return path
}

// PullSecret is a Docker configuration that logs in to the registry.
func (s *Server) PullSecret(user, password string) string {
	auth := base64.StdEncoding.EncodeToString([]byte(user + ":" + password))

	text, err := json.Marshal(map[string]any{"auths": map[string]any{s.Host: map[string]string{"auth": auth}}})
	if err != nil {
		panic(err) // strings can be written
	}

	return string(text)
}
