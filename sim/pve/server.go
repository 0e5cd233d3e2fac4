// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"cmp"
	"context"
	cryptorand "crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
)

// Server simulates one cluster.
type Server struct {
	model Model
	clk   clock.Clock
	log   *slog.Logger

	ctx    context.Context //nolint:containedctx // ends with the server and stops its workers
	stop   context.CancelFunc
	wg     sync.WaitGroup
	locks  *lockTable
	routes []route

	mu          sync.Mutex // guards everything below
	closed      bool
	rng         *rand.Rand
	nodes       map[string]*node
	stores      map[storeKey]*store
	vms         map[int]*machine
	pools       map[string]*pool
	tasks       map[string]*task
	crashes     int
	taskOrder   []*task
	nextPID     int
	access      access
	faults      []*faultRule
	calls       callLog
	options     map[string]string         // the datacenter options
	pciMappings map[string]PCIMapping     // by ID
	ha          map[string]map[string]any // the objects of high availability, by kind/ID
	consolePort int                       // of the last console, above the first one
	terminals   map[int]*terminal         // the terminals that wait for their clients, by port
	hooks       map[int]func(Call)
	nextHook    int
	sightings   map[int][]sighting // the VMs in the status broadcasts, by VMID
	started     time.Time
	consoles    map[int]*guestLog

	http       *http.Server
	listener   net.Listener
	certs      atomic.Pointer[certs]
	release    atomic.Pointer[string] // see version
	tls        *tls.Config
	conns      sync.Map // by net.Conn
	workDir    string
	nextRoot   int
	host       *vmHost // nil unless guests run under QEMU
	populating bool
	groups     []int // process groups of the guests' programs
}

// Option configures a Server.
type Option func(*Server)

// WithClock sets the clock of the server. All times and delays use this clock.
func WithClock(c clock.Clock) Option { return func(s *Server) { s.clk = c } }

// WithLogger sets the logger of the simulator.
func WithLogger(l *slog.Logger) Option { return func(s *Server) { s.log = l } }

// New builds a cluster from a model. The cluster does not listen until [Server.Start] is called.
func New(m Model, opts ...Option) (*Server, error) {
	if err := m.Validate(); err != nil {
		return nil, fmt.Errorf("build cluster from model: %w", err)
	}
	s := &Server{
		model: m, clk: clock.RealClock{}, log: slog.New(slog.DiscardHandler),
		nodes: map[string]*node{}, stores: map[storeKey]*store{}, vms: map[int]*machine{},
		pools: map[string]*pool{}, tasks: map[string]*task{}, nextPID: 1000,
		hooks: map[int]func(Call){}, sightings: map[int][]sighting{},
		consoles: map[int]*guestLog{}, terminals: map[int]*terminal{}, options: newOptions(m),
		pciMappings: map[string]PCIMapping{}, ha: map[string]map[string]any{},
	}
	for _, o := range opts {
		o(s)
	}
	s.release.Store(&m.Version)
	s.rng = rand.New(rand.NewPCG(uint64(m.Seed), 0)) // #nosec G404 -- intentionally repeatable
	s.locks = newLockTable(s.clk)
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.routes = allRoutes()
	s.access = newAccess(m)
	s.populating = true
	err := s.prepareVMHost()
	if err == nil {
		err = s.populate()
	}
	if err != nil {
		s.stop()
		return nil, errors.Join(err, s.removeWorkDir())
	}
	s.populating = false
	for _, f := range m.Faults {
		s.AddFault(f)
	}
	return s, nil
}

// ListenOptions configures how a server listens.
type ListenOptions struct {
	// Address is host:port. If Address is empty, the server listens on a free port of the loopback
	// address.
	Address string
	// Listener, if set, accepts the connections in place of a socket on Address.
	Listener net.Listener
	// ClientCAs, if set, makes the listener require a client certificate that one of these CAs has
	// signed. A TLS-terminating proxy in front of a cluster can have the same requirement.
	ClientCAs *x509.CertPool
}

// Start listens with TLS and serves until [Server.Close]. The certificate is signed by the cluster's
// own CA.
func (s *Server) Start(l ListenOptions) error {
	s.mu.Lock()
	clusterID := s.newUUID()
	s.mu.Unlock()
	certs, err := newCerts(s.model.Nodes, clusterID)
	if err != nil {
		return err
	}
	ln, err := s.listen(l)
	if err != nil {
		return err
	}
	cfg := &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return &s.certs.Load().server, nil
		},
		NextProtos: []string{"http/1.1"}, // as in pveproxy
	}
	if l.ClientCAs != nil {
		cfg.ClientAuth = tls.RequireAndVerifyClientCert
		cfg.ClientCAs = l.ClientCAs
	}
	s.listener, s.tls = ln, cfg
	s.certs.Store(certs)
	s.http = &http.Server{
		Handler: s, ReadHeaderTimeout: 30 * time.Second,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, conn)
		},
		ConnState: func(conn net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				s.conns.Store(conn, nil)
			case http.StateClosed, http.StateHijacked:
				s.conns.Delete(conn)
			default:
			}
		},
	}
	s.wg.Go(func() {
		if err := s.http.Serve(&apiListener{ln, cfg}); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("serve", "error", err)
		}
	})
	return nil
}

// ReplaceCA replaces the cluster's CA and the certificate of the API. As the restart of pveproxy does, it closes the
// connections and ends the TLS sessions.
func (s *Server) ReplaceCA() error {
	s.mu.Lock()
	clusterID := s.newUUID()
	s.mu.Unlock()
	certs, err := newCerts(s.model.Nodes, clusterID)
	if err != nil {
		return err
	}
	var ticketKey [32]byte
	_, _ = cryptorand.Read(ticketKey[:]) // never fails
	s.certs.Store(certs)
	s.tls.SetSessionTicketKeys([][32]byte{ticketKey})
	s.conns.Range(func(conn, _ any) bool {
		if open, ok := conn.(net.Conn); ok {
			_ = open.Close()
		}
		return true
	})
	return nil
}

func (s *Server) listen(l ListenOptions) (net.Listener, error) {
	if l.Listener != nil {
		return l.Listener, nil
	}
	address := cmp.Or(l.Address, "127.0.0.1:0")
	ln, err := (&net.ListenConfig{}).Listen(s.ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	return ln, nil
}

// Close stops listening, ends all tasks and guests, and waits for their ends.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	var err error
	if s.http != nil {
		err = s.http.Close()
	}
	s.stop()
	s.wg.Wait()
	return errors.Join(err, s.removeWorkDir())
}

func (s *Server) removeWorkDir() error {
	if s.workDir == "" {
		return nil
	}
	if err := os.RemoveAll(s.workDir); err != nil {
		return fmt.Errorf("remove work directory: %w", err)
	}
	return nil
}

// URL returns the address of the API's host without a path, such as https://127.0.0.1:8006.
func (s *Server) URL() string { return "https://" + s.listener.Addr().String() }

// Fingerprint returns the SHA-256 fingerprint of the server's certificate in upper case with colons,
// as Proxmox VE shows it.
func (s *Server) Fingerprint() string { return s.certs.Load().fingerprint }

// CAPEM returns the cluster's CA certificate in PEM format.
func (s *Server) CAPEM() []byte { return s.certs.Load().caPEM }

// HTTPClient returns a client that trusts the cluster's CA.
func (s *Server) HTTPClient() *http.Client {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(s.certs.Load().caPEM)
	return &http.Client{
		Timeout:   time.Minute,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}},
	}
}

// Clock returns the clock of the server.
func (s *Server) Clock() clock.Clock { return s.clk }

// Model returns the model from which the server was built.
func (s *Server) Model() Model { return s.model }

// drainBody reads the rest of a request's body. Otherwise a connection reset could discard the
// response.
func drainBody(r *http.Request) {
	const maxRest = 64 << 20
	if r.ContentLength <= maxRest {
		_, _ = io.CopyN(io.Discard, r.Body, maxRest)
	}
}
