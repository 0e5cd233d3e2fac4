// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package brokers

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/kit/procrun"
	"github.com/hyperfleet/hyperfleet/test/loopback"
)

const (
	// rabbitProgram is the server itself; the one in the PATH of Debian's package changes
	// users first.
	rabbitProgram = "/usr/lib/rabbitmq/bin/rabbitmq-server"
	rabbitPackage = "install rabbitmq-server"

	startTimeout = 3 * time.Minute
	dialTimeout  = 5 * time.Second
	grace        = 20 * time.Second
	// portTries is how often the start is tried again when somebody else takes a free port
	// that was picked.
	portTries = 3
	ownerOnly = 0o600
)

// Server is a RabbitMQ server.
type Server struct {
	// URL that clients connect to; without a user, if there are Users. It stays the same over
	// Kill and Restart.
	URL string
	// Address is its host and port.
	Address string

	program, dir     string
	port, dist, epmd int

	// calling is held by the one test that calls it.
	calling sync.Mutex
	mu      sync.Mutex
	process *procrun.Process
}

// StartRabbitMQ starts a RabbitMQ server with the vhosts / and closed, and user and password
// guest if there are no others. Clients with a certificate may come in by its common name.
func StartRabbitMQ(t testing.TB, users ...User) *Server {
	t.Helper()

	program := rabbitProgram
	if _, err := os.Stat(program); err != nil {
		if program, err = exec.LookPath("rabbitmq-server"); err != nil {
			t.Fatalf("find RabbitMQ: %v (%s)", err, rabbitPackage)
		}
	}

	for try := 1; ; try++ {
		s := &Server{program: program, dir: shortDir(t), port: loopback.Port(t), dist: loopback.Port(t), epmd: loopback.Port(t)}
		s.Address = local(s.port)
		s.URL = "amqp://guest:guest@" + s.Address + "/"

		// Tests fill disks that are small. Each door says by itself whether it verifies; who comes in
		// by a certificate is refused if this does not say it as well.
		config := "disk_free_limit.absolute = 10MB\nvm_memory_high_watermark.absolute = 512MB\nlisteners.tcp.1 = " + s.Address +
			"\nauth_mechanisms.1 = PLAIN\nauth_mechanisms.2 = EXTERNAL\n" +
			"ssl_cert_login_from = common_name\nssl_options.verify = verify_peer\n"

		if len(users) > 0 {
			s.URL = "amqp://" + s.Address + "/"
			config += "load_definitions = " + s.define(t, users) + "\n"
		}

		write(t, s.in("rabbitmq.conf"), config)
		write(t, s.in("enabled_plugins"), "[rabbitmq_auth_mechanism_ssl].\n")
		s.startEPMD(t)

		err := s.run()
		if err == nil {
			t.Cleanup(func() { s.stop(t) })

			return s
		}

		if try == portTries {
			t.Fatalf("start RabbitMQ: %v", err)
		}
	}
}

// Kill ends the broker at once, as a power failure would.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()

	if err := s.process.Kill(); err != nil {
		t.Fatalf("kill RabbitMQ: %v", err)
	}
}

// Restart starts a broker that has ended, with what it held, and returns when it answers.
func (s *Server) Restart(t testing.TB) {
	t.Helper()

	if err := s.run(); err != nil {
		t.Fatalf("start RabbitMQ again: %v", err)
	}
}

func (s *Server) stop(t testing.TB) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()

	if err := s.process.Stop(); err != nil {
		t.Errorf("stop RabbitMQ: %v", err)
	}
}

func (s *Server) in(name string) string { return filepath.Join(s.dir, name) }

func (s *Server) name() string { return "t" + strconv.Itoa(s.port) + "@localhost" }

// environment is what programs of Erlang's need to find each other.
func (s *Server) environment() []string {
	return append(os.Environ(), "HOME="+s.dir, "ERL_EPMD_ADDRESS=127.0.0.1", "ERL_EPMD_PORT="+strconv.Itoa(s.epmd))
}

// startEPMD starts Erlang's port mapper, which the node would else leave running.
func (s *Server) startEPMD(t testing.TB) {
	t.Helper()

	path, err := exec.LookPath("epmd")
	if err != nil {
		t.Fatalf("find epmd: %v (%s)", err, rabbitPackage)
	}

	process, err := procrun.Start(context.Background(), procrun.Spec{
		Path: path, Args: []string{"-address", "127.0.0.1", "-port", strconv.Itoa(s.epmd)},
		Dir: s.dir, LogPath: s.in("epmd.log"), Grace: grace,
	})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		if err := process.Kill(); err != nil {
			t.Error(err)
		}
	})
}

func (s *Server) run() error {
	s.mu.Lock()
	defer s.mu.Unlock()

	process, err := procrun.Start(context.Background(), procrun.Spec{
		Name: "rabbitmq", Path: s.program, Dir: s.dir, LogPath: s.in("log"), Grace: grace,
		Env: append(s.environment(),
			"RABBITMQ_NODENAME="+s.name(), "RABBITMQ_CONFIG_FILE="+s.in("rabbitmq"), "RABBITMQ_MNESIA_BASE="+s.in("data"),
			"RABBITMQ_LOG_BASE="+s.in("logs"), "RABBITMQ_PID_FILE="+s.in("pid"),
			"RABBITMQ_ENABLED_PLUGINS_FILE="+s.in("enabled_plugins"), "RABBITMQ_DIST_PORT="+strconv.Itoa(s.dist),
			// Its threads wait for work without turning round, which others need the processors for.
			`RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1} +sbwt none +sbwtdcpu none +sbwtdio none`,
		),
	})
	if err != nil {
		return err
	}

	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()

	if err := process.WaitReady(ctx, s.listens); err != nil {
		_ = process.Kill()

		return err
	}

	s.process = process

	return nil
}

// listens says whether it takes connections, which it does at the end of its start.
func (s *Server) listens(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()

	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", s.Address)
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
