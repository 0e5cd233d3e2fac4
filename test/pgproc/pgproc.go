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
	// account is the user that runs the server if this process runs as root, because PostgreSQL
	// refuses to run as root.
	account = "postgres"

	startTimeout = 2 * time.Minute
	probeTimeout = 5 * time.Second
	stopTimeout  = 10 * time.Second
	// maxPortAttempts is the maximum number of attempts to start the server. An attempt fails if
	// another program occupies the picked port.
	maxPortAttempts = 3
)

// Options configure a server.
type Options struct {
	// Dir is the folder for data and logs. Start creates it with access only for the server's user,
	// and deletes the data of an earlier run. Stop does not delete it. If this process runs as root,
	// the user postgres must have access to the parent folders. Required.
	Dir string
	// BinDir is the folder with the programs. Default: see FindBinaries.
	BinDir string
}

// Server is a running PostgreSQL server.
type Server struct {
	options  Options
	account  *user.User
	password string
	port     int
	process  *procrun.Process
}

// Start creates an empty database cluster, starts a server for it, and returns when the server is
// ready. The server runs until Stop is called, ctx ends, or this process ends.
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

	if err := server.initialize(ctx); err != nil {
		return nil, err
	}

	for attempt := 1; ; attempt++ {
		ports, err := procrun.PickPorts(1)
		if err != nil {
			return nil, err
		}

		err = server.serve(ctx, ports[0])
		if err == nil {
			return server, nil
		}

		if !errors.Is(err, procrun.ErrExited) || attempt == maxPortAttempts {
			return nil, errors.Join(err, server.Stop())
		}
	}
}

// initialize creates the folder and an empty database cluster in it.
func (s *Server) initialize(parent context.Context) error {
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
	defer os.Remove(secret) //nolint:errcheck // only the owner can access the folder

	if err := s.chownToServerUser(s.options.Dir, secret); err != nil {
		return err
	}

	ctx, cancel := context.WithTimeout(parent, startTimeout)
	defer cancel()

	// The password is sent only over the loopback interface. With SCRAM, each connection would cost
	// the client 4,096 rounds of hashing.
	process, err := s.startProgram(ctx, initdb, "-D", s.path("data"), "-U", superuser, "-A", "password",
		"--pwfile", secret, "--no-sync", "--encoding", "UTF8", "--locale", "C")
	if err != nil {
		return err
	}

	if err := process.Wait(ctx); err != nil {
		return fmt.Errorf("create database cluster in %s: %w: %s", s.options.Dir, err, process.LogTail())
	}

	return nil
}

// serve starts the server on a port and waits until it is ready.
func (s *Server) serve(parent context.Context, port int) error {
	// The data need not survive a crash, so the server does not wait for disks.
	process, err := s.startProgram(parent, postgres, "-D", s.path("data"), "-p", strconv.Itoa(port),
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

// startProgram starts one of PostgreSQL's programs, as the user postgres if this process runs as
// root. When a child changes its user, the kernel clears the setting that kills the child with its
// parent, so setpriv sets it again.
func (s *Server) startProgram(ctx context.Context, name string, args ...string) (*procrun.Process, error) {
	spec := procrun.Spec{
		Name: name, Path: filepath.Join(s.options.BinDir, name), Args: args, Dir: s.options.Dir,
		LogPath: s.path(name + ".log"),
		Env:     []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC", "HOME=" + s.options.Dir},
	}

	if s.account != nil {
		setpriv, err := exec.LookPath("setpriv")
		if err != nil {
			return nil, fmt.Errorf("run %s as user %s: %w: install util-linux, or run this program as a user other than root",
				name, account, err)
		}

		spec.Args = append([]string{
			"--reuid", s.account.Uid, "--regid", s.account.Gid, "--clear-groups", "--pdeathsig", "SIGKILL", spec.Path,
		}, args...)
		spec.Path = setpriv
	}

	return procrun.Start(ctx, spec)
}

// chownToServerUser changes the owner of the paths to the user postgres if this process runs as
// root. Otherwise it does nothing.
func (s *Server) chownToServerUser(paths ...string) error {
	if os.Geteuid() != 0 {
		return nil
	}

	found, err := user.Lookup(account)
	if err != nil {
		return fmt.Errorf("start postgres: PostgreSQL does not run as root: %w: install PostgreSQL's package, "+
			"which creates that user", err)
	}

	s.account = found

	uid, err := strconv.Atoi(found.Uid)
	if err != nil {
		return fmt.Errorf("start postgres: parse id of user %s: %w", account, err)
	}

	gid, err := strconv.Atoi(found.Gid)
	if err != nil {
		return fmt.Errorf("start postgres: parse group id of user %s: %w", account, err)
	}

	for _, path := range paths {
		if err := os.Chown(path, uid, gid); err != nil {
			return fmt.Errorf("start postgres: %w", err)
		}
	}

	return nil
}

// Stop stops the server and keeps its data in the folder. A second call does nothing.
func (s *Server) Stop() error {
	if s.process == nil {
		return nil
	}

	// SIGQUIT requests an immediate shutdown. The server stops its children, each of which has a
	// process group of its own, before it exits.
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

// Process returns the server's process, for tests that freeze or kill it.
func (s *Server) Process() *procrun.Process { return s.process }

// Restart stops the server if it runs, and starts it again with the same data and the same address.
// Do not call it concurrently with other methods.
func (s *Server) Restart(ctx context.Context) error {
	if err := s.Stop(); err != nil {
		return err
	}

	return s.serve(ctx, s.port)
}

// URL returns the URL of a database. It contains the password of the superuser.
func (s *Server) URL(database string) string {
	address := url.URL{
		Scheme: "postgres", User: url.UserPassword(superuser, s.password),
		Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)), Path: "/" + database, RawQuery: "sslmode=disable",
	}

	return address.String()
}

func (s *Server) path(name string) string { return filepath.Join(s.options.Dir, name) }
