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
	// rabbitProgram is the path of the server. The wrapper that Debian's package puts on the PATH switches
	// to another user first.
	rabbitProgram = "/usr/lib/rabbitmq/bin/rabbitmq-server"
	rabbitPackage = "install rabbitmq-server"

	startTimeout = 3 * time.Minute
	dialTimeout  = 5 * time.Second
	grace        = 20 * time.Second
	// portAttempts is the number of attempts to start the server. An attempt fails if another process takes
	// one of the free ports that were chosen.
	portAttempts = 3
	ownerOnly    = 0o600
)

// Server is a RabbitMQ server.
type Server struct {
	// URL is the URL for clients. It contains no user if the server was started with users. Kill and
	// Restart do not change it.
	URL string
	// Address is the host and port of the server.
	Address string

	program, dir                 string
	amqpPort, distPort, epmdPort int

	// callMu is held during a call of callErlang.
	callMu  sync.Mutex
	mu      sync.Mutex
	process *procrun.Process
}

// StartRabbitMQ starts a RabbitMQ server until the test ends. Without users, its user and password are
// guest. If users are given, the server has only these, and the vhosts / and closed. A client certificate
// authenticates the user that its common name names.
func StartRabbitMQ(t testing.TB, users ...User) *Server {
	t.Helper()

	program := rabbitProgram
	if _, err := os.Stat(program); err != nil {
		if program, err = exec.LookPath("rabbitmq-server"); err != nil {
			t.Fatalf("find RabbitMQ: %v (%s)", err, rabbitPackage)
		}
	}

	for attempt := 1; ; attempt++ {
		s := &Server{
			program: program, dir: loopback.SocketFolder(t),
			amqpPort: loopback.Port(t), distPort: loopback.Port(t), epmdPort: loopback.Port(t),
		}
		s.Address = loopbackAddress(s.amqpPort)
		s.URL = "amqp://guest:guest@" + s.Address + "/"

		// The disk limit is low, because tests run on nearly full disks. Each TLSListener sets its own verify
		// option, but RabbitMQ rejects the login by certificate unless ssl_options.verify is set here, too.
		config := "disk_free_limit.absolute = 10MB\nvm_memory_high_watermark.absolute = 512MB\nlisteners.tcp.1 = " + s.Address +
			"\nauth_mechanisms.1 = PLAIN\nauth_mechanisms.2 = EXTERNAL\n" +
			"ssl_cert_login_from = common_name\nssl_options.verify = verify_peer\n"

		if len(users) > 0 {
			s.URL = "amqp://" + s.Address + "/"
			config += "load_definitions = " + s.writeDefinitions(t, users) + "\n"
		}

		writeFile(t, s.path("rabbitmq.conf"), config)
		writeFile(t, s.path("enabled_plugins"), "[rabbitmq_auth_mechanism_ssl].\n")
		s.startEPMD(t)

		err := s.startProcess()
		if err == nil {
			t.Cleanup(func() { s.stop(t) })

			return s
		}

		if attempt == portAttempts {
			t.Fatalf("start RabbitMQ: %v", err)
		}
	}
}

// Kill kills the server process, as a power failure would.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()

	if err := s.process.Kill(); err != nil {
		t.Fatalf("kill RabbitMQ: %v", err)
	}
}

// Restart starts a server that has ended, with its data, and returns when the server accepts connections.
func (s *Server) Restart(t testing.TB) {
	t.Helper()

	if err := s.startProcess(); err != nil {
		t.Fatalf("restart RabbitMQ: %v", err)
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

func (s *Server) path(name string) string { return filepath.Join(s.dir, name) }

func (s *Server) nodeName() string { return "t" + strconv.Itoa(s.amqpPort) + "@localhost" }

// environment returns the environment variables with which Erlang programs find each other.
func (s *Server) environment() []string {
	return append(os.Environ(), "HOME="+s.dir, "ERL_EPMD_ADDRESS=127.0.0.1", "ERL_EPMD_PORT="+strconv.Itoa(s.epmdPort))
}

// startEPMD starts Erlang's port mapper, and stops it when the test ends. Otherwise the server would start
// a port mapper and leave it running.
func (s *Server) startEPMD(t testing.TB) {
	t.Helper()

	path, err := exec.LookPath("epmd")
	if err != nil {
		t.Fatalf("find epmd: %v (%s)", err, rabbitPackage)
	}

	process, err := procrun.Start(context.Background(), procrun.Spec{
		Path: path, Args: []string{"-address", "127.0.0.1", "-port", strconv.Itoa(s.epmdPort)},
		Dir: s.dir, LogPath: s.path("epmd.log"), GracePeriod: grace,
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

func (s *Server) startProcess() error {
	s.mu.Lock()
	defer s.mu.Unlock()

	process, err := procrun.Start(context.Background(), procrun.Spec{
		Name: "rabbitmq", Path: s.program, Dir: s.dir, LogPath: s.path("log"), GracePeriod: grace,
		Env: append(s.environment(),
			"RABBITMQ_NODENAME="+s.nodeName(), "RABBITMQ_CONFIG_FILE="+s.path("rabbitmq"), "RABBITMQ_MNESIA_BASE="+s.path("data"),
			"RABBITMQ_LOG_BASE="+s.path("logs"), "RABBITMQ_PID_FILE="+s.path("pid"),
			"RABBITMQ_ENABLED_PLUGINS_FILE="+s.path("enabled_plugins"), "RABBITMQ_DIST_PORT="+strconv.Itoa(s.distPort),
			// Disable busy waiting of Erlang's scheduler threads, which would take CPU time from other tests.
			`RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1} +sbwt none +sbwtdcpu none +sbwtdio none`,
		),
	})
	if err != nil {
		return err
	}

	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()

	if err := process.WaitReady(ctx, s.checkListening); err != nil {
		_ = process.Kill()

		return err
	}

	s.process = process

	return nil
}

// checkListening returns an error if the server does not accept connections. The server accepts them at the
// end of its start.
func (s *Server) checkListening(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()

	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", s.Address)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}

	return conn.Close()
}

func loopbackAddress(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
