// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pgproc

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hyperfleet/hyperfleet/kit/procrun"
)

const (
	superuser = "hyperfleet"
	// account runs the server when this process is root's, which PostgreSQL refuses.
	account = "postgres"

	startTimeout = 2 * time.Minute
	probeTimeout = 5 * time.Second
	stopTimeout  = 10 * time.Second
	// portTries is how often the start is tried again when somebody else takes the free
	// port that was picked.
	portTries = 3
)

// Options say what to run.
type Options struct {
	// Dir holds data and log. It is made, for the server's user alone, emptied of an
	// earlier run's data, and not removed. Required. The user postgres has to be able to
	// reach it when this process is root's.
	Dir string
	// BinDir holds the programs. Default: see FindBinaries.
	BinDir string
}

// Server is a running PostgreSQL.
type Server struct {
	options  Options
	account  *user.User
	password string
	port     int
	process  *procrun.Process
}

// Start makes an empty database cluster and serves it; it returns when the server
// answers. The server ends with Stop, with ctx, or with this process.
func Start(ctx context.Context, options Options) (*Server, error) {
	if options.BinDir == "" {
		found, err := FindBinaries()
		if err != nil {
			return nil, err
		}

		options.BinDir = found
	}

	dir, err := filepath.Abs(options.Dir)
	if err != nil {
		return nil, fmt.Errorf("start postgres: %w", err)
	}

	options.Dir = dir
	server := &Server{options: options, password: rand.Text()}

	if err := server.initialise(ctx); err != nil {
		return nil, err
	}

	for try := 1; ; try++ {
		ports, err := procrun.Ports(1)
		if err != nil {
			return nil, err
		}

		err = server.serve(ctx, ports[0])
		if err == nil {
			return server, nil
		}

		if !errors.Is(err, procrun.ErrEnded) || try == portTries {
			return nil, errors.Join(err, server.Stop())
		}
	}
}

// initialise makes the folder and an empty database cluster in it.
func (s *Server) initialise(parent context.Context) error {
	if err := os.RemoveAll(s.path("data")); err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}

	if err := os.MkdirAll(s.options.Dir, 0o700); err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}

	secret := s.path("password")
	if err := os.WriteFile(secret, []byte(s.password+"\n"), 0o600); err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	defer os.Remove(secret) //nolint:errcheck // the folder is the owner's alone

	if err := s.handOver(s.options.Dir, secret); err != nil {
		return err
	}

	ctx, cancel := context.WithTimeout(parent, startTimeout)
	defer cancel()

	// The password stays on the loopback interface. SCRAM would cost a client 4,096 rounds of
	// hashing for each connection.
	process, err := s.run(ctx, initdb, "-D", s.path("data"), "-U", superuser, "-A", "password",
		"--pwfile", secret, "--no-sync", "--encoding", "UTF8", "--locale", "C")
	if err != nil {
		return err
	}

	if err := process.Wait(ctx); err != nil {
		return fmt.Errorf("make database cluster in %s: %w: %s", s.options.Dir, err, process.LogTail())
	}

	return nil
}

// serve starts the server on a port and waits until it answers.
func (s *Server) serve(parent context.Context, port int) error {
	// Nothing here is kept, so nothing waits for disks.
	process, err := s.run(parent, postgres, "-D", s.path("data"), "-p", strconv.Itoa(port),
		"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "max_connections=300",
		"-c", "fsync=off", "-c", "full_page_writes=off", "-c", "shared_buffers=64MB")
	if err != nil {
		return err
	}

	s.port, s.process = port, process

	ctx, cancel := context.WithTimeout(parent, startTimeout)
	defer cancel()

	return process.WaitReady(ctx, s.probe)
}

func (s *Server) probe(parent context.Context) error {
	ctx, cancel := context.WithTimeout(parent, probeTimeout)
	defer cancel()

	conn, err := pgx.Connect(ctx, s.URL(postgres))
	if err != nil {
		return err
	}

	return conn.Close(ctx)
}

// run starts one of PostgreSQL's programs, as the user postgres if this process is
// root's. The kernel forgets to end a child with its parent when the child becomes
// another user, so setpriv says it again.
func (s *Server) run(ctx context.Context, name string, args ...string) (*procrun.Process, error) {
	spec := procrun.Spec{
		Name: name, Path: filepath.Join(s.options.BinDir, name), Args: args, Dir: s.options.Dir,
		LogPath: s.path(name + ".log"),
		Env:     []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC", "HOME=" + s.options.Dir},
	}

	if s.account != nil {
		setpriv, err := exec.LookPath("setpriv")
		if err != nil {
			return nil, fmt.Errorf("run %s as user %s: %w: install util-linux, or run this as another user than root",
				name, account, err)
		}

		spec.Args = append([]string{
			"--reuid", s.account.Uid, "--regid", s.account.Gid, "--clear-groups", "--pdeathsig", "SIGKILL", spec.Path,
		}, args...)
		spec.Path = setpriv
	}

	return procrun.Start(ctx, spec)
}

// handOver gives the paths to the user postgres if this process is root's.
func (s *Server) handOver(paths ...string) error {
	if os.Geteuid() != 0 {
		return nil
	}

	found, err := user.Lookup(account)
	if err != nil {
		return fmt.Errorf("start postgres: it does not run as root: %w: install PostgreSQL's package, which makes that user", err)
	}

	s.account = found

	uid, err := strconv.Atoi(found.Uid)
	if err != nil {
		return fmt.Errorf("start postgres: id of user %s: %w", account, err)
	}

	gid, err := strconv.Atoi(found.Gid)
	if err != nil {
		return fmt.Errorf("start postgres: group of user %s: %w", account, err)
	}

	for _, path := range paths {
		if err := os.Chown(path, uid, gid); err != nil {
			return fmt.Errorf("start postgres: %w", err)
		}
	}

	return nil
}

// Stop ends the server; its data is left in the folder. A second call does nothing.
func (s *Server) Stop() error {
	if s.process == nil {
		return nil
	}

	// An immediate shutdown: the server ends its own children, each of which has a
	// process group of its own, before it ends.
	if err := s.process.Signal(syscall.SIGQUIT); err != nil {
		return err
	}

	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()

	select {
	case <-s.process.Done():
		return nil
	case <-timer.C:
		return s.process.Kill()
	}
}

// Process is the server's, for tests that freeze or kill it.
func (s *Server) Process() *procrun.Process { return s.process }

// Restart kills the server if it still runs, and serves the same data again at the same
// address. It is not to be called at once with other methods.
func (s *Server) Restart(ctx context.Context) error {
	if err := s.Stop(); err != nil {
		return err
	}

	return s.serve(ctx, s.port)
}

// URL is where a database is reached, with the password of the superuser in it.
func (s *Server) URL(database string) string {
	address := url.URL{
		Scheme: "postgres", User: url.UserPassword(superuser, s.password),
		Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)), Path: "/" + database, RawQuery: "sslmode=disable",
	}

	return address.String()
}

func (s *Server) path(name string) string { return filepath.Join(s.options.Dir, name) }
