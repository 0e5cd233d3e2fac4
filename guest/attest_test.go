// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package guest_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	agentv1 "github.com/spiffe/spire-api-sdk/proto/spire/api/server/agent/v1"
	entryv1 "github.com/spiffe/spire-api-sdk/proto/spire/api/server/entry/v1"
	"github.com/spiffe/spire-api-sdk/proto/spire/api/types"
	"google.golang.org/grpc/codes"

	api "github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/guest"
	"github.com/hyperfleet/hyperfleet/test/loopback"
	"github.com/hyperfleet/hyperfleet/test/spire"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

// machineID is the path of the machine's SPIFFE ID.
const machineID = "/vm/team-a/ci-1/4f2c8a3e"

// unknownBundle is a valid trust bundle of an authority that no test uses.
const unknownBundle = `-----BEGIN CERTIFICATE-----
MIHuMIGVoAMCAQICAQEwCgYIKoZIzj0EAwIwADAgFw0yMDAxMDEwMDAwMDBaGA8y
MTAwMDEwMTAwMDAwMFowADBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABK1GZLGW
aAFPn7g8+ezoAawkShtVE3d/PYYWTyKU7TCYya+ga8ADIRQnJ2HECX6GsZ6ez/qv
5xmxVdjcJjXLXvEwCgYIKoZIzj0EAwIDSAAwRQIhAPs39NmRYaLTlMA1sOYWAAxL
ZNPqExezwkmGW3sMYM+2AiBt4hR9xAkYzmUH83+ku5a2CKjL6GiAMviALOQXhgaO
FA==
-----END CERTIFICATE-----`

// newSPIFFE returns a valid attestation configuration.
func newSPIFFE() *api.SPIFFE {
	return &api.SPIFFE{
		Enabled: true, JoinToken: "join-token-secret", TrustDomain: spire.DefaultTrustDomain,
		SPIFFEID: "spiffe://" + spire.DefaultTrustDomain + machineID, ServerAddress: "127.0.0.1:1", TrustBundle: unknownBundle,
	}
}

// registerMachine registers a machine at a server, and returns its join token. The machine gets an SVID with
// the path svidPath.
func registerMachine(t *testing.T, server *spire.Server, path, svidPath string, ttl int32) string {
	t.Helper()

	conn := server.Dial(t)
	id := func(path string) *types.SPIFFEID { return &types.SPIFFEID{TrustDomain: server.TrustDomain, Path: path} }

	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}

	_, name, _ := strings.Cut(svidPath, "/vm/")

	made, err := entryv1.NewEntryClient(conn).BatchCreateEntry(t.Context(), &entryv1.BatchCreateEntryRequest{
		Entries: []*types.Entry{{SpiffeId: id(svidPath), ParentId: id(path), DnsNames: listDNSNames(name), Selectors: []*types.Selector{
			{Type: "unix", Value: "uid:" + strconv.Itoa(os.Getuid())}, {Type: "unix", Value: "path:" + program},
		}}},
	})
	if err != nil || made.GetResults()[0].GetStatus().GetCode() != int32(codes.OK) {
		t.Fatalf("create entry: %v, %v", made, err)
	}

	token, err := agentv1.NewAgentClient(conn).CreateJoinToken(t.Context(), &agentv1.CreateJoinTokenRequest{Ttl: ttl, AgentId: id(path)})
	if err != nil {
		t.Fatal(err)
	}

	return token.GetValue()
}

// listDNSNames returns the DNS names of a machine. The first one becomes the common name of its certificate,
// which Vault's cert method uses as the machine's name.
func listDNSNames(name string) []string {
	if name == "" {
		return nil
	}

	return []string{name[strings.LastIndex(name, "/")+1:]}
}

// prepareAttestation installs spire-agent in the machine's image and configures the attestation.
func (m *machine) prepareAttestation(t *testing.T, server *spire.Server, token string) {
	t.Helper()

	m.root = loopback.SocketFolder(t)

	if err := os.MkdirAll(filepath.Dir(m.path(api.AgentPath)), 0o755); err != nil {
		t.Fatal(err)
	}

	if err := os.Symlink(spire.AgentProgram(t), m.path(api.AgentPath)); err != nil {
		t.Fatal(err)
	}

	m.cfg.SPIFFE = newSPIFFE()
	m.cfg.SPIFFE.JoinToken = token

	if server != nil {
		m.cfg.SPIFFE.ServerAddress, m.cfg.SPIFFE.TrustBundle = server.Address, server.Bundle(t)
	}
}

func TestMachineAttestsSPIRE(t *testing.T) {
	t.Parallel()

	server := spire.Start(t)
	m := newMachine(t)
	token := registerMachine(t, server, machineID, machineID, 600)
	m.prepareAttestation(t, server, token)
	m.write(t, runScript, `env > seen.env; ls -l /proc/$$/fd > seen.fd; ls ../../run/hyperfleet/spire > seen.agent 2>&1 || true; `+printListening+printRunning+printCompleted)

	if got := m.waitForEnd(t, m.start(t, t.Context())); got.Reason != api.ReasonJobDone {
		t.Fatalf("%+v\n%s", got, m.log)
	}

	if want := "Started Attesting Attested Configuring Listening Running Finished"; m.listPhases() != want {
		t.Errorf("phases %q, want %q", m.listPhases(), want)
	}

	if strings.Contains(m.log.String(), token) {
		t.Errorf("the join token is in the log:\n%s", m.log)
	}

	m.requireDeleted(t, "/run/hyperfleet/spire")

	if seen := m.read(t, "/opt/actions-runner/seen.env"); strings.Contains(seen, "SPIFFE") || strings.Contains(seen, token) {
		t.Errorf("the runner's environment contains the agent's settings:\n%s", seen)
	}

	if seen := m.read(t, "/opt/actions-runner/seen.fd"); strings.Contains(seen, "socket:") {
		t.Errorf("the runner has a socket of the service:\n%s", seen)
	}

	// A job that runs as the service's account could use the agent, so the agent must have ended.
	if seen := m.read(t, "/opt/actions-runner/seen.agent"); !strings.Contains(seen, "No such file") {
		t.Errorf("the agent still runs when the runner starts: %s", seen)
	}

	// The server rejects the second use of the token, and the machine ends.
	m.prepareAttestation(t, server, token)
	m.write(t, runScript, "touch ran")

	got := m.waitForEnd(t, m.start(t, t.Context()))
	if got.Reason != api.ReasonAttestationRefused || !strings.Contains(got.Message, "already been used") {
		t.Errorf("%+v\n%s", got, m.log)
	}

	m.requireDeleted(t, "/opt/actions-runner/ran")
	m.requireDeleted(t, "/run/hyperfleet/spire")
}

// TestMachineDoesNotAttestSPIRE has one case for each way in which the attestation can fail.
func TestMachineDoesNotAttestSPIRE(t *testing.T) {
	t.Parallel()

	server, other := spire.Start(t), spire.Start(t, spire.WithTrustDomain("example.org"))
	script := func(text string) func(*testing.T, *machine) {
		return func(t *testing.T, m *machine) {
			t.Helper()

			if err := os.Remove(m.path(api.AgentPath)); err != nil {
				t.Fatal(err)
			}

			m.write(t, api.AgentPath, "#!/bin/sh\n"+text+"\n")
		}
	}
	never := func(*testing.T, *machine) {}

	for name, tc := range map[string]struct {
		server  *spire.Server
		change  func(*testing.T, *machine)
		drive   func(*testing.T, *machine)
		reason  string
		message string
	}{
		"a token that the server does not know": {
			server: server, change: never, reason: api.ReasonAttestationRefused, message: "join token does not exist",
		},
		"an expired token": {
			server: server,
			change: func(t *testing.T, m *machine) {
				t.Helper()
				m.cfg.SPIFFE.JoinToken = registerMachine(t, server, machineID+"-1", machineID+"-1", 1)
				time.Sleep(2500 * time.Millisecond) // the server counts the token's lifetime in seconds
			},
			reason: api.ReasonAttestationRefused, message: "join token expired",
		},
		"verified by another server's keys": {
			server: server,
			change: func(t *testing.T, m *machine) { t.Helper(); m.cfg.SPIFFE.TrustBundle = other.Bundle(t) },
			reason: api.ReasonTrustDomainMismatch, message: "authority",
		},
		"a server of another trust domain": {
			server: other, change: never, reason: api.ReasonTrustDomainMismatch, message: "example.org",
		},
		"a clock that is wrong": {
			server: server,
			change: func(t *testing.T, m *machine) {
				t.Helper()
				m.cfg.SPIFFE.ServerAddress, m.cfg.SPIFFE.TrustBundle = startFutureServer(t)
			},
			drive:  func(t *testing.T, m *machine) { t.Helper(); m.clock.waitAndFire(t, time.Minute) },
			reason: api.ReasonClockSkew, message: "not yet valid",
		},
		"no server": {
			change: func(t *testing.T, m *machine) { t.Helper(); m.cfg.SPIFFE.TrustBundle = server.Bundle(t) },
			drive: func(t *testing.T, m *machine) {
				t.Helper()
				timing.WaitUntil(t, "the agent logs its error", func() bool { return strings.Contains(m.log.String(), "connection refused") })
				m.clock.waitAndFire(t, 5*time.Minute)
			},
			reason: api.ReasonAttestationTimeout, message: "connection refused",
		},
		"no entry": {
			server: server,
			change: func(t *testing.T, m *machine) {
				t.Helper()
				m.cfg.SPIFFE.JoinToken = registerMachine(t, server, machineID+"-2", "/of/nobody", 600)
			},
			reason: api.ReasonIdentityMismatch, message: "spiffe://hyperfleet.io/of/nobody",
		},
		"an agent for another machine": {
			server: server,
			change: func(t *testing.T, m *machine) { t.Helper(); script("")(t, m); m.write(t, api.AgentPath, "\x7fELF") },
			reason: api.ReasonAttestationUnavailable, message: "exec format error",
		},
		"an agent that ends each time": {
			server: server, change: script("echo Segmentation fault; exit 139"),
			drive: func(t *testing.T, m *machine) {
				t.Helper()

				for range 5 {
					m.clock.waitAndFire(t, 5*time.Second)
				}
			},
			reason: api.ReasonAttestationUnavailable, message: "6 times",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			m := newMachine(t)
			m.prepareAttestation(t, tc.server, "0c1d7a6e-unknown")
			tc.change(t, m)
			m.requireAttestationFailure(t, tc.drive, tc.reason, tc.message)
		})
	}
}

// requireAttestationFailure requires that the machine fails with the reason before its runner starts.
func (m *machine) requireAttestationFailure(t *testing.T, drive func(*testing.T, *machine), reason, message string) {
	t.Helper()
	m.write(t, runScript, "touch ran")

	result := m.start(t, t.Context())
	if drive != nil {
		drive(t, m)
	}

	got := m.waitForEnd(t, result)
	if got.Reason != reason || got.Phase != api.PhaseFailed || !strings.Contains(got.Message, message) {
		t.Errorf("ended with %s, %q; want %s, %q\n%s", got.Reason, got.Message, reason, message, m.log)
	}

	m.requireDeleted(t, "/opt/actions-runner/ran")
	m.requireDeleted(t, "/run/hyperfleet/spire")
}

// attest attests the machine without running a job. Its identity exists until the test ends.
func (m *machine) attest(t *testing.T) *guest.Attested {
	t.Helper()

	attested, err := guest.Attest(t.Context(), m.options(), &m.cfg)
	if err != nil {
		t.Fatalf("%v\n%s", err, m.log)
	}

	t.Cleanup(attested.Close)

	return attested
}

// A machine that is stopped during its attestation ends.
func TestAttestationEndsSPIRE(t *testing.T) {
	t.Parallel()

	m := newMachine(t)
	m.prepareAttestation(t, nil, "0c1d7a6e")
	m.cfg.SPIFFE.TrustBundle = spire.Start(t).Bundle(t)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	result := m.start(t, ctx)

	timing.WaitUntil(t, "the agent logs its error", func() bool { return strings.Contains(m.log.String(), "connection refused") })
	cancel()

	if got := m.waitForEnd(t, result); got.Reason != api.ReasonTerminated || got.Phase != api.PhaseFinished {
		t.Errorf("%+v", got)
	}
}

// startFutureServer starts a TLS server whose certificate is not valid yet, so that the agent's clock seems
// wrong. It returns the address and the trust bundle.
func startFutureServer(t *testing.T) (address, bundle string) {
	t.Helper()

	domain := &url.URL{Scheme: "spiffe", Host: spire.DefaultTrustDomain}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, URIs: []*url.URL{domain},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(48 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), URIs: []*url.URL{domain.JoinPath("spire", "server")},
		NotBefore: time.Now().Add(24 * time.Hour), NotAfter: time.Now().Add(36 * time.Hour),
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}

	caKey, caDER := signCertificate(t, ca, ca, nil)
	key, der := signCertificate(t, leaf, ca, caKey)

	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12,
	})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = listener.Close() })

	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}

			go func(conn net.Conn) {
				_, _ = conn.Read(make([]byte, 1))
				_ = conn.Close()
			}(conn)
		}
	}()

	return listener.Addr().String(), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER}))
}

func signCertificate(t *testing.T, c, parent *x509.Certificate, by *ecdsa.PrivateKey) (*ecdsa.PrivateKey, []byte) {
	t.Helper()

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}

	if by == nil {
		by = key
	}

	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, by)
	if err != nil {
		t.Fatal(err)
	}

	return key, der
}
