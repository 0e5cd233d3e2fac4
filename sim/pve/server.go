// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"context"
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
	"time"

	"k8s.io/utils/clock"
)

// Server is one simulated cluster.
type Server struct {
	model Model
	clk   clock.Clock
	log   *slog.Logger

	ctx    context.Context //nolint:containedctx // the life of the server's workers
	stop   context.CancelFunc
	wg     sync.WaitGroup
	locks  *lockTable
	routes []route

	mu        sync.Mutex // guards everything below
	closed    bool
	rng       *rand.Rand
	nodes     map[string]*node
	stores    map[storeKey]*store
	vms       map[int]*machine
	pools     map[string]map[int]bool
	tasks     map[string]*task
	crashes   int
	taskOrder []*task
	nextPID   int
	access    access
	faults    []*faultRule
	calls     callLog
	options   map[string]string // of the datacenter
	hooks     map[int]func(Call)
	nextHook  int
	seen      map[int][]sighting // what the status broadcasts say, by VMID
	started   time.Time
	consoles  map[int]*guestLog

	http       *http.Server
	listener   net.Listener
	certs      *certs
	workDir    string
	nextRoot   int
	host       *vmHost // nil unless guests run under QEMU
	populating bool
	groups     []int // process groups of guests' programs
}

// Option changes how a server runs.
type Option func(*Server)

// WithClock injects the clock everything is timed by.
func WithClock(c clock.Clock) Option { return func(s *Server) { s.clk = c } }

// WithLogger sets where the simulator reports what it does.
func WithLogger(l *slog.Logger) Option { return func(s *Server) { s.log = l } }

// New builds a cluster from a model. It does not listen yet; see [Server.Start].
func New(m Model, opts ...Option) (*Server, error) {
	if err := m.Validate(); err != nil {
		return nil, fmt.Errorf("build cluster from model: %w", err)
	}
	s := &Server{
		model: m, clk: clock.RealClock{}, log: slog.New(slog.DiscardHandler),
		nodes: map[string]*node{}, stores: map[storeKey]*store{}, vms: map[int]*machine{},
		pools: map[string]map[int]bool{}, tasks: map[string]*task{}, nextPID: 1000,
		hooks: map[int]func(Call){}, seen: map[int][]sighting{},
		consoles: map[int]*guestLog{}, options: map[string]string{},
	}
	for _, o := range opts {
		o(s)
	}
	s.rng = rand.New(rand.NewPCG(uint64(m.Seed), 0)) // #nosec G404 -- repeatable on purpose
	s.locks = newLockTable(s.clk)
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.routes = allRoutes()
	s.access = newAccess(m)
	s.populating = true
	err := s.newHost()
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

// Listen says where and how a server listens.
type Listen struct {
	// Address is host:port; empty means a free port on the loopback address.
	Address string
	// ClientCAs, when set, makes the listener demand a client certificate one
	// of these CAs signed, as a TLS-terminating proxy in front of a cluster may.
	ClientCAs *x509.CertPool
}

// Start listens with TLS under a certificate of the cluster's own CA and
// serves until [Server.Close].
func (s *Server) Start(l Listen) error {
	certs, err := newCerts(s.model.Nodes)
	if err != nil {
		return err
	}
	if l.Address == "" {
		l.Address = "127.0.0.1:0"
	}
	ln, err := (&net.ListenConfig{}).Listen(s.ctx, "tcp", l.Address)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", l.Address, err)
	}
	cfg := &tls.Config{
		Certificates: []tls.Certificate{certs.server}, MinVersion: tls.VersionTLS12,
		NextProtos: []string{"http/1.1"}, // as pveproxy
	}
	if l.ClientCAs != nil {
		cfg.ClientAuth = tls.RequireAndVerifyClientCert
		cfg.ClientCAs = l.ClientCAs
	}
	s.certs, s.listener = certs, ln
	s.http = &http.Server{
		Handler: s, ReadHeaderTimeout: 30 * time.Second,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	s.wg.Go(func() {
		if err := s.http.Serve(tls.NewListener(ln, cfg)); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("serve", "error", err)
		}
	})
	return nil
}

// Close stops listening, ends every task and guest, and waits for them.
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

// URL is the address of the API's host, without a path, such as
// https://127.0.0.1:8006.
func (s *Server) URL() string { return "https://" + s.listener.Addr().String() }

// Fingerprint is the SHA-256 fingerprint of the server's certificate, upper
// case with colons, as Proxmox shows it.
func (s *Server) Fingerprint() string { return s.certs.fingerprint }

// CAPEM is the cluster's CA certificate.
func (s *Server) CAPEM() []byte { return s.certs.caPEM }

// HTTPClient trusts the cluster's CA.
func (s *Server) HTTPClient() *http.Client {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(s.certs.caPEM)
	return &http.Client{
		Timeout:   time.Minute,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}},
	}
}

// Clock is the clock the server runs by.
func (s *Server) Clock() clock.Clock { return s.clk }

// Model is the model the server was built from.
func (s *Server) Model() Model { return s.model }

// drain reads what is left of a body, so that a reply is not lost to a reset.
func drain(r io.Reader) {
	const most = 64 << 20
	_, _ = io.CopyN(io.Discard, r, most)
}
