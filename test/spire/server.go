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
	localauthorityv1 "github.com/spiffe/spire-api-sdk/proto/spire/api/server/localauthority/v1"
	"github.com/spiffe/spire-api-sdk/proto/spire/api/types"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/hyperfleet/hyperfleet/kit/procrun"
	"github.com/hyperfleet/hyperfleet/test/loopback"
	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/test/postgres"
)

const (
	serverName = "spire-server"
	agentName  = "spire-agent"

	startTimeout = time.Minute
	callTimeout  = 10 * time.Second
	grace        = 3 * time.Second
	// portAttempts is the number of attempts to start the server. An attempt fails if another process takes
	// the free port that was chosen.
	portAttempts = 3

	ownerOnly = 0o600
)

// DefaultTrustDomain is the trust domain of a server that is started without WithTrustDomain.
const DefaultTrustDomain = "hyperfleet.io"

// JWTIssuer is the issuer of the servers' JWT-SVIDs.
const JWTIssuer = "https://oidc.hyperfleet.test"

// Option configures a server or an agent.
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

// WithTrustDomain sets the trust domain of a server, or the trust domain that an agent expects of its server.
func WithTrustDomain(name string) Option { return func(o *options) { o.trustDomain = name } }

// WithPlugin adds a plugin's configuration, for example `NodeAttestor "tpm_devid" { plugin_data { ... } }`.
func WithPlugin(text string) Option {
	return func(o *options) { o.plugins = append(o.plugins, text) }
}

// WithAdmins allows clients with an SVID of one of the SPIFFE IDs to call the whole API of the server
// (setting admin_ids).
func WithAdmins(ids ...string) Option {
	return func(o *options) { o.admins = append(o.admins, ids...) }
}

// WithTTL sets the lifetimes of X.509-SVIDs and JWT-SVIDs. Default: 10 and 5 minutes.
func WithTTL(x509SVID, jwtSVID time.Duration) Option {
	return func(o *options) { o.x509TTL, o.jwtTTL = x509SVID, jwtSVID }
}

// WithBundle sets the bundle in PEM by which an agent verifies its server.
func WithBundle(bundle string) Option { return func(o *options) { o.bundle = bundle } }

// WithServerAddress sets the address host:port at which an agent attests.
func WithServerAddress(address string) Option { return func(o *options) { o.address = address } }

func applyOptions(trustDomain string, opts []Option) options {
	const x509TTL, jwtTTL = 10 * time.Minute, 5 * time.Minute

	settings := options{trustDomain: trustDomain, x509TTL: x509TTL, jwtTTL: jwtTTL}
	for _, opt := range opts {
		opt(&settings)
	}

	return settings
}

// Server is a SPIRE server.
type Server struct {
	// Socket is the path of the admin API's socket.
	Socket string
	// Address is the host:port at which agents attest. Stop and Restart do not change it.
	Address string
	// TrustDomain is the name of the trust domain without spiffe://.
	TrustDomain string
	// Dir is the server's directory. A test may write files of a plugin into it.
	Dir string

	options options
	// database is the URL of the datastore.
	database string
	mu       sync.Mutex
	process  *procrun.Process
	agents   int
}

// Start starts a server until the test ends, and returns when the server responds. If the test run skips
// tests with SPIRE in their names (make test), Start fails any other test, also on a host that has the
// program.
func Start(t testing.TB, opts ...Option) *Server {
	t.Helper()

	if skip := flag.Lookup("test.skip"); skip != nil && strings.Contains(skip.Value.String(), "SPIRE") {
		t.Fatalf("start SPIRE server: put SPIRE into the name of %s, because make test skips such tests and make e2e-spire runs them",
			t.Name())
	}

	dir := loopback.SocketFolder(t)
	settings := applyOptions(DefaultTrustDomain, opts)
	server := &Server{
		Socket: filepath.Join(dir, "server.sock"), TrustDomain: settings.trustDomain, Dir: dir, options: settings,
		database: postgres.NewDatabase(t),
	}

	t.Cleanup(func() {
		server.Stop(t)
		showLog(t, server.path("server.log"))

		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})

	for attempt := 1; ; attempt++ {
		server.Address = loopback.Address(t)

		err := server.start(t)
		if err == nil {
			return server
		}

		if attempt == portAttempts || !strings.Contains(err.Error(), "address already in use") {
			t.Fatal(err)
		}
	}
}

func (s *Server) path(name string) string { return filepath.Join(s.Dir, name) }

// start starts the program, and waits until it responds.
func (s *Server) start(t testing.TB) error {
	t.Helper()

	program := findProgram(t, serverName)

	if err := os.WriteFile(s.path("server.conf"), []byte(s.renderConfig()), ownerOnly); err != nil {
		return fmt.Errorf("write server.conf: %w", err)
	}

	process, err := procrun.Start(context.Background(), procrun.Spec{
		Path: program, Args: []string{"run", "-config", s.path("server.conf")}, Dir: s.Dir,
		LogPath: s.path("server.log"), GracePeriod: grace,
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
		if _, err := s.fetchBundle(ctx); err != nil {
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

// Stop stops the server. Its data stays. Stop does nothing if the server is already stopped.
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

// renderConfig returns the server's configuration file (SPIRE's doc/spire_server.md).
func (s *Server) renderConfig() string {
	host, port, _ := net.SplitHostPort(s.Address)
	lines := []string{
		"server {",
		formatSetting("bind_address", host), formatSetting("bind_port", port), formatSetting("socket_path", s.Socket),
		formatSetting("trust_domain", s.TrustDomain), formatSetting("data_dir", s.path("data")), formatSetting("log_level", "DEBUG"),
		formatSetting("ca_ttl", "24h"), formatSetting("jwt_issuer", JWTIssuer),
		formatSetting("default_x509_svid_ttl", s.options.x509TTL.String()),
		formatSetting("default_jwt_svid_ttl", s.options.jwtTTL.String()),
	}

	if len(s.options.admins) > 0 {
		lines = append(lines, `admin_ids = ["`+strings.Join(s.options.admins, `", "`)+`"]`)
	}

	lines = append(lines, "}", "plugins {",
		`DataStore "sql" { plugin_data {`, formatSetting("database_type", "postgres"),
		formatSetting("connection_string", s.database), "} }",
		`KeyManager "disk" { plugin_data {`, formatSetting("keys_path", s.path("keys.json")), "} }",
		`NodeAttestor "join_token" { plugin_data {} }`,
	)
	lines = append(lines, s.options.plugins...)

	return strings.Join(append(lines, "}", ""), "\n")
}

func formatSetting(name, value string) string { return name + " = " + strconv.Quote(value) }

// Dial connects to the admin API. The connection is closed when the test ends.
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
	// The file permissions of the socket protect the API.
	conn, err := grpc.NewClient("unix:"+s.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("dial SPIRE server: %w", err)
	}

	return conn, nil
}

func (s *Server) fetchBundle(ctx context.Context) (*types.Bundle, error) {
	conn, err := s.dial()
	if err != nil {
		return nil, err
	}

	defer conn.Close() //nolint:errcheck // the connection is only used to read

	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()

	bundle, err := bundlev1.NewBundleClient(conn).GetBundle(ctx, &bundlev1.GetBundleRequest{})
	if err != nil {
		return nil, fmt.Errorf("get bundle: %w", err)
	}

	return bundle, nil
}

// ListRegistered returns the server's entries and agents with the paths of their SPIFFE IDs.
func (s *Server) ListRegistered(t testing.TB) []string {
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

// Bundle returns the X.509 authorities of the trust domain in PEM.
func (s *Server) Bundle(t testing.TB) string {
	t.Helper()

	bundle, err := s.fetchBundle(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	var out strings.Builder
	for _, authority := range bundle.GetX509Authorities() {
		out.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.GetAsn1()}))
	}

	return out.String()
}

// ReplaceAuthorities makes the server sign with a new CA and a new JWT key, and returns the ID of the new CA, which is
// its key ID in hexadecimal. The former ones stay in the bundle until revoke is called. Agents replace their SVIDs
// when they see that the former CA is tainted.
func (s *Server) ReplaceAuthorities(t testing.TB) (id string, revoke func()) {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()

	client := localauthorityv1.NewLocalAuthorityClient(s.Dial(t))

	ca, err := client.PrepareX509Authority(ctx, &localauthorityv1.PrepareX509AuthorityRequest{})
	must.Do(t, err)

	id = ca.GetPreparedAuthority().GetAuthorityId()
	_, err = client.ActivateX509Authority(ctx, &localauthorityv1.ActivateX509AuthorityRequest{AuthorityId: id})
	must.Do(t, err)

	key, err := client.PrepareJWTAuthority(ctx, &localauthorityv1.PrepareJWTAuthorityRequest{})
	must.Do(t, err)

	_, err = client.ActivateJWTAuthority(ctx, &localauthorityv1.ActivateJWTAuthorityRequest{
		AuthorityId: key.GetPreparedAuthority().GetAuthorityId(),
	})
	must.Do(t, err)

	states, err := client.GetX509AuthorityState(ctx, &localauthorityv1.GetX509AuthorityStateRequest{})
	must.Do(t, err)

	keys, err := client.GetJWTAuthorityState(ctx, &localauthorityv1.GetJWTAuthorityStateRequest{})
	must.Do(t, err)

	formerCA, formerKey := states.GetOld().GetAuthorityId(), keys.GetOld().GetAuthorityId()
	_, err = client.TaintX509Authority(ctx, &localauthorityv1.TaintX509AuthorityRequest{AuthorityId: formerCA})
	must.Do(t, err)

	_, err = client.TaintJWTAuthority(ctx, &localauthorityv1.TaintJWTAuthorityRequest{AuthorityId: formerKey})
	must.Do(t, err)

	return id, func() {
		ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
		defer cancel()

		_, err := client.RevokeX509Authority(ctx, &localauthorityv1.RevokeX509AuthorityRequest{AuthorityId: formerCA})
		must.Do(t, err)

		_, err = client.RevokeJWTAuthority(ctx, &localauthorityv1.RevokeJWTAuthorityRequest{AuthorityId: formerKey})
		must.Do(t, err)
	}
}

// JWKS returns the JWT authorities of the trust domain as a JSON Web Key Set.
func (s *Server) JWKS(t testing.TB) []byte {
	t.Helper()

	bundle, err := s.fetchBundle(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	keys := jwtbundle.New(spiffeid.RequireTrustDomainFromString(s.TrustDomain))

	for _, authority := range bundle.GetJwtAuthorities() {
		key, err := x509.ParsePKIXPublicKey(authority.GetPublicKey())
		if err != nil {
			t.Fatalf("parse JWT authority %s: %v", authority.GetKeyId(), err)
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

// findProgram returns the path of a program.
func findProgram(t testing.TB, name string) string {
	t.Helper()

	dir, err := procrun.FindBinaries(name)
	if err != nil {
		t.Fatalf("find %s: %v: run hack/setup.sh spire to build it", name, err)
	}

	return filepath.Join(dir, name)
}

// showLog prints the end of a program's log if the test has failed.
func showLog(t testing.TB, path string) {
	t.Helper()

	if !t.Failed() {
		return
	}

	const maxLogSize = 32 << 10

	data, err := os.ReadFile(path)
	if err != nil {
		t.Logf("read log: %v", err)

		return
	}

	if len(data) > maxLogSize {
		data = data[len(data)-maxLogSize:]
	}

	t.Logf("%s:\n%s", filepath.Base(path), data)
}
