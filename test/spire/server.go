// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package spire

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/jwtbundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	agentv1 "github.com/spiffe/spire-api-sdk/proto/spire/api/server/agent/v1"
	bundlev1 "github.com/spiffe/spire-api-sdk/proto/spire/api/server/bundle/v1"
	entryv1 "github.com/spiffe/spire-api-sdk/proto/spire/api/server/entry/v1"
	"github.com/spiffe/spire-api-sdk/proto/spire/api/types"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/hyperfleet/hyperfleet/kit/procrun"
	"github.com/hyperfleet/hyperfleet/test/loopback"
	"github.com/hyperfleet/hyperfleet/test/postgres"
)

const (
	serverName = "spire-server"
	agentName  = "spire-agent"

	startTimeout = time.Minute
	callTimeout  = 10 * time.Second
	grace        = 3 * time.Second
	// portTries is how often the start is tried again when somebody else takes the free
	// port that was picked.
	portTries = 3

	ownerOnly = 0o600
)

// DefaultTrustDomain is the trust domain of a server without WithTrustDomain.
const DefaultTrustDomain = "hyperfleet.io"

// JWTIssuer is the issuer that servers write into JWT-SVIDs.
const JWTIssuer = "https://oidc.hyperfleet.test"

// Option changes what is started.
type Option func(*options)

type options struct {
	trustDomain string
	plugins     []string
	admins      []string
	x509TTL     time.Duration
	jwtTTL      time.Duration
	bundle      string
	address     string
}

// WithTrustDomain starts a server of another trust domain, or an agent that takes its
// server for one of it.
func WithTrustDomain(name string) Option { return func(o *options) { o.trustDomain = name } }

// WithPlugin adds a plugin's configuration, e.g. `NodeAttestor "tpm_devid" { plugin_data { ... } }`.
func WithPlugin(text string) Option {
	return func(o *options) { o.plugins = append(o.plugins, text) }
}

// WithAdmins lets whoever shows an SVID of one of the ids call all of the server's API
// (setting admin_ids).
func WithAdmins(ids ...string) Option {
	return func(o *options) { o.admins = append(o.admins, ids...) }
}

// WithTTL says how long X.509-SVIDs and JWT-SVIDs are valid. Default: 10 and 5 minutes.
func WithTTL(x509SVID, jwtSVID time.Duration) Option {
	return func(o *options) { o.x509TTL, o.jwtTTL = x509SVID, jwtSVID }
}

// WithBundle has an agent verify its server by another bundle, in PEM.
func WithBundle(bundle string) Option { return func(o *options) { o.bundle = bundle } }

// WithServerAddress has an agent attest at another address, host:port.
func WithServerAddress(address string) Option { return func(o *options) { o.address = address } }

func choose(trustDomain string, opts []Option) options {
	const x509TTL, jwtTTL = 10 * time.Minute, 5 * time.Minute

	chosen := options{trustDomain: trustDomain, x509TTL: x509TTL, jwtTTL: jwtTTL}
	for _, opt := range opts {
		opt(&chosen)
	}

	return chosen
}

// Server is a SPIRE server.
type Server struct {
	// Socket of the admin API, as a path.
	Socket string
	// Address that agents attest at, host:port. It stays the same over Stop and Restart.
	Address string
	// TrustDomain without spiffe://.
	TrustDomain string
	// Dir is the server's folder, which a test may put a plugin's files into.
	Dir string

	options options
	// database is the URL of the datastore.
	database string
	mu       sync.Mutex
	process  *procrun.Process
	agents   int
}

// Start starts a server and returns when it answers. Where tests named after SPIRE are left out (make test),
// a test that starts one all the same fails, also on a machine that has the program.
func Start(t testing.TB, opts ...Option) *Server {
	t.Helper()

	if skip := flag.Lookup("test.skip"); skip != nil && strings.Contains(skip.Value.String(), "SPIRE") {
		t.Fatalf("start SPIRE server: put SPIRE into the name of %s: make test leaves such tests to make e2e-spire", t.Name())
	}

	// Paths of sockets are short (sun_path of unix(7)), names of tests are not.
	dir, err := os.MkdirTemp("", "hf-spire-") //nolint:usetesting // as above
	if err != nil {
		t.Fatalf("start SPIRE server: %v", err)
	}

	chosen := choose(DefaultTrustDomain, opts)
	server := &Server{
		Socket: filepath.Join(dir, "server.sock"), TrustDomain: chosen.trustDomain, Dir: dir, options: chosen,
		database: postgres.Database(t),
	}

	t.Cleanup(func() {
		server.Stop(t)
		showLog(t, server.path("server.log"))

		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})

	for try := 1; ; try++ {
		server.Address = loopback.Address(t)

		err := server.start(t)
		if err == nil {
			return server
		}

		if try == portTries || !strings.Contains(err.Error(), "address already in use") {
			t.Fatal(err)
		}
	}
}

func (s *Server) path(name string) string { return filepath.Join(s.Dir, name) }

// start starts the program.
func (s *Server) start(t testing.TB) error {
	t.Helper()

	program := find(t, serverName)

	if err := os.WriteFile(s.path("server.conf"), []byte(s.config()), ownerOnly); err != nil {
		return fmt.Errorf("write server.conf: %w", err)
	}

	process, err := procrun.Start(context.Background(), procrun.Spec{
		Path: program, Args: []string{"run", "-config", s.path("server.conf")}, Dir: s.Dir, LogPath: s.path("server.log"), Grace: grace,
	})
	if err != nil {
		return fmt.Errorf("start SPIRE server: %w", err)
	}

	s.mu.Lock()
	s.process = process
	s.mu.Unlock()

	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()

	err = process.WaitReady(ctx, func(ctx context.Context) error {
		if _, err := s.bundle(ctx); err != nil {
			return err
		}

		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", s.Address)
		if err != nil {
			return fmt.Errorf("dial server: %w", err)
		}

		return conn.Close()
	})
	if err != nil {
		s.Stop(t)

		return fmt.Errorf("start SPIRE server: %w", err)
	}

	return nil
}

// Stop ends the server; its data stays. It does nothing to one that has ended.
func (s *Server) Stop(t testing.TB) {
	t.Helper()

	s.mu.Lock()
	defer s.mu.Unlock()

	if s.process == nil {
		return
	}

	if err := s.process.Stop(); err != nil {
		t.Errorf("stop SPIRE server: %v", err)
	}

	s.process = nil
}

// Restart starts the server again after Stop, with its data, keys and address.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.Stop(t)

	if err := s.start(t); err != nil {
		t.Fatal(err)
	}
}

// config is the server's configuration file (SPIRE's doc/spire_server.md).
func (s *Server) config() string {
	host, port, _ := net.SplitHostPort(s.Address)
	lines := []string{
		"server {",
		setting("bind_address", host), setting("bind_port", port), setting("socket_path", s.Socket),
		setting("trust_domain", s.TrustDomain), setting("data_dir", s.path("data")), setting("log_level", "DEBUG"),
		setting("ca_ttl", "24h"), setting("jwt_issuer", JWTIssuer),
		setting("default_x509_svid_ttl", s.options.x509TTL.String()), setting("default_jwt_svid_ttl", s.options.jwtTTL.String()),
	}

	if len(s.options.admins) > 0 {
		lines = append(lines, `admin_ids = ["`+strings.Join(s.options.admins, `", "`)+`"]`)
	}

	lines = append(lines, "}", "plugins {",
		`DataStore "sql" { plugin_data {`, setting("database_type", "postgres"),
		setting("connection_string", s.database), "} }",
		`KeyManager "disk" { plugin_data {`, setting("keys_path", s.path("keys.json")), "} }",
		`NodeAttestor "join_token" { plugin_data {} }`,
	)
	lines = append(lines, s.options.plugins...)

	return strings.Join(append(lines, "}", ""), "\n")
}

func setting(name, value string) string { return name + " = " + strconv.Quote(value) }

// Dial connects to the admin API. The connection ends with the test.
func (s *Server) Dial(t testing.TB) *grpc.ClientConn {
	t.Helper()

	conn, err := s.dial()
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = conn.Close() })

	return conn
}

func (s *Server) dial() (*grpc.ClientConn, error) {
	// The socket's own rights are the credential.
	conn, err := grpc.NewClient("unix:"+s.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("dial SPIRE server: %w", err)
	}

	return conn, nil
}

func (s *Server) bundle(ctx context.Context) (*types.Bundle, error) {
	conn, err := s.dial()
	if err != nil {
		return nil, err
	}

	defer conn.Close() //nolint:errcheck // nothing is written

	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()

	bundle, err := bundlev1.NewBundleClient(conn).GetBundle(ctx, &bundlev1.GetBundleRequest{})
	if err != nil {
		return nil, fmt.Errorf("get bundle: %w", err)
	}

	return bundle, nil
}

// Known is all that the server knows: entries and agents, by the paths of their SPIFFE IDs.
func (s *Server) Known(t testing.TB) []string {
	t.Helper()

	conn := s.Dial(t)

	entries, err := entryv1.NewEntryClient(conn).ListEntries(t.Context(), &entryv1.ListEntriesRequest{})
	if err != nil {
		t.Fatal(err)
	}

	agents, err := agentv1.NewAgentClient(conn).ListAgents(t.Context(), &agentv1.ListAgentsRequest{})
	if err != nil {
		t.Fatal(err)
	}

	var out []string
	for _, entry := range entries.GetEntries() {
		out = append(out, "entry "+entry.GetSpiffeId().GetPath())
	}

	for _, agent := range agents.GetAgents() {
		out = append(out, "agent "+agent.GetId().GetPath())
	}

	return out
}

// Bundle gives the authorities of X.509-SVIDs in PEM.
func (s *Server) Bundle(t testing.TB) string {
	t.Helper()

	bundle, err := s.bundle(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	var out strings.Builder
	for _, authority := range bundle.GetX509Authorities() {
		out.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.GetAsn1()}))
	}

	return out.String()
}

// JWKS gives the keys of JWT-SVIDs as a JSON Web Key Set.
func (s *Server) JWKS(t testing.TB) []byte {
	t.Helper()

	bundle, err := s.bundle(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	keys := jwtbundle.New(spiffeid.RequireTrustDomainFromString(s.TrustDomain))

	for _, authority := range bundle.GetJwtAuthorities() {
		key, err := x509.ParsePKIXPublicKey(authority.GetPublicKey())
		if err != nil {
			t.Fatalf("read JWT authority %s: %v", authority.GetKeyId(), err)
		}

		if err := keys.AddJWTAuthority(authority.GetKeyId(), key); err != nil {
			t.Fatal(err)
		}
	}

	data, err := keys.Marshal()
	if err != nil {
		t.Fatal(err)
	}

	if !json.Valid(data) {
		t.Fatalf("the key set is not JSON: %s", data)
	}

	return data
}

// find gives the path of a program.
func find(t testing.TB, name string) string {
	t.Helper()

	dir, err := procrun.FindBinaries(name)
	if err != nil {
		t.Fatalf("find %s: %v (hack/setup.sh spire makes it)", name, err)
	}

	return filepath.Join(dir, name)
}

// showLog shows a program's log where the test failed.
func showLog(t testing.TB, path string) {
	t.Helper()

	if !t.Failed() {
		return
	}

	const most = 32 << 10

	data, err := os.ReadFile(path)
	if err != nil {
		t.Logf("no log: %v", err)

		return
	}

	if len(data) > most {
		data = data[len(data)-most:]
	}

	t.Logf("%s:\n%s", filepath.Base(path), data)
}
