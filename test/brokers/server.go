// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package brokers

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/kit/procrun"
)

const (
	startTimeout = 3 * time.Minute
	dialTimeout  = 5 * time.Second
	grace        = 20 * time.Second
	// portTries is how often the start is tried again when somebody else takes a free port
	// that was picked.
	portTries = 3
	ownerOnly = 0o600
)

// Server is a broker.
type Server struct {
	// URL that clients connect to; without a user, if the Setup has its own. It stays the
	// same over Kill and Restart.
	URL string
	// Address is its host and port.
	Address string

	name string
	// node is what a RabbitMQ server runs as.
	node    *rabbitNode
	start   func(context.Context) (*procrun.Process, error)
	ready   func(context.Context) error
	mu      sync.Mutex
	process *procrun.Process
}

// Kill ends the broker at once, as a power failure would.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()

	if err := s.process.Kill(); err != nil {
		t.Fatalf("kill %s: %v", s.name, err)
	}
}

// Stop ends the broker in order.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()

	if err := s.process.Stop(); err != nil {
		t.Errorf("stop %s: %v", s.name, err)
	}
}

// Restart starts a broker that has ended, with what it held, and returns when it
// answers.
func (s *Server) Restart(t testing.TB) {
	t.Helper()

	if err := s.run(); err != nil {
		t.Fatalf("start %s again: %v", s.name, err)
	}
}

// Change has the broker go by another Setup, with what it holds, and ends all connections.
// Whether it speaks TLS stays as it was, and Users of before that are not in it are still let
// into RabbitMQ.
func (s *Server) Change(t testing.TB, setup Setup) {
	t.Helper()

	// It takes RabbitMQ seconds to start.
	s.node.change(t, setup)
}

func (s *Server) run() error {
	s.mu.Lock()
	defer s.mu.Unlock()

	process, err := s.start(context.Background())
	if err != nil {
		return err
	}

	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()

	if err := process.WaitReady(ctx, s.ready); err != nil {
		_ = process.Kill()

		return err
	}

	s.process = process

	return nil
}

// begin starts a server, on other ports if the first ones are taken.
func begin(t testing.TB, configure func() *Server) *Server {
	t.Helper()

	for try := 1; ; try++ {
		server := configure()

		err := server.run()
		if err == nil {
			t.Cleanup(func() { server.Stop(t) })

			return server
		}

		if try == portTries {
			t.Fatalf("start %s: %v", server.name, err)
		}
	}
}

// one is the setup that was given, or that which asks nothing.
func one(setups []Setup) Setup {
	if len(setups) == 0 {
		return Setup{}
	}

	return setups[0]
}

// listens says whether somebody takes connections there.
func listens(ctx context.Context, address string) error {
	var dialer net.Dialer

	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()

	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}

	return conn.Close()
}

func local(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// shortDir makes a folder with a short path, which names of nodes and sockets need.
func shortDir(t testing.TB) string {
	t.Helper()

	dir, err := os.MkdirTemp("", "hf-broker-") //nolint:usetesting // as above
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})

	return dir
}
