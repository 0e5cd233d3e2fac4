// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/external"
	"github.com/hyperfleet/hyperfleet/hypervisor/external/providerpb"
	"github.com/hyperfleet/hyperfleet/kit/bounds"
)

const (
	// maxStreams limits the concurrent calls of one operator.
	maxStreams = 256
	// minClientPing is the shortest interval of an operator's pings that the server accepts.
	minClientPing = 5 * time.Second
	// pingInterval and pingTimeout find out that an operator is gone.
	pingInterval = 20 * time.Second
	pingTimeout  = 10 * time.Second
)

// Program is a provider as a program of its own.
type Program struct {
	// Name and Version of the program, for people.
	Name, Version string
	// New returns a connection for an operator and a cluster. The Config has no credentials: the program has its own.
	New hypervisor.Factory
	// Register adds further services to the server, such as the one of package conform in tests. It may be nil.
	Register func(grpc.ServiceRegistrar)
}

// Options say where a program listens.
type Options struct {
	// Address is unix:///PATH or HOST:PORT.
	Address string
	// CertFile, KeyFile and ClientCAFile are files in PEM: the server's certificate with its key, and the authorities
	// whose client certificates are accepted. They are required for HOST:PORT, and are read again for each connection, so
	// that they can be replaced.
	CertFile, KeyFile, ClientCAFile string
}

// Run serves the program until ctx ends.
func Run(ctx context.Context, options Options, program Program) error {
	listener, transport, err := listen(ctx, options)
	if err != nil {
		return err
	}

	serverOptions := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(providerpb.MaxMessage), grpc.MaxSendMsgSize(providerpb.MaxMessage),
		grpc.MaxConcurrentStreams(maxStreams), grpc.WaitForHandlers(true),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minClientPing, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingInterval, Timeout: pingTimeout}),
	}
	if transport != nil {
		serverOptions = append(serverOptions, grpc.Creds(transport))
	}

	server := grpc.NewServer(serverOptions...)
	providerpb.RegisterHypervisorServer(server, newService(program))

	healthServer := health.NewServer()
	grpc_health_v1.RegisterHealthServer(server, healthServer)
	healthServer.SetServingStatus(providerpb.Hypervisor_ServiceDesc.ServiceName, grpc_health_v1.HealthCheckResponse_SERVING)

	if program.Register != nil {
		program.Register(server)
	}

	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)

		// The calls Connect stay open, so the server cannot wait for all calls to end by themselves.
		healthServer.Shutdown()
		server.Stop()
	})

	err = server.Serve(listener)
	if !stop() {
		<-stopped
	}

	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve provider at %s: %w", options.Address, err)
	}

	return nil
}

func listen(ctx context.Context, options Options) (net.Listener, credentials.TransportCredentials, error) {
	var config net.ListenConfig

	socket, isSocket := strings.CutPrefix(options.Address, external.UnixScheme)
	if isSocket {
		// A program that was killed leaves its socket.
		if err := removeSocket(ctx, socket); err != nil {
			return nil, nil, err
		}

		listener, err := config.Listen(ctx, "unix", socket)
		if err != nil {
			return nil, nil, fmt.Errorf("listen at %s: %w", options.Address, err)
		}

		if err := restrictSocket(socket); err != nil {
			return nil, nil, errors.Join(err, listener.Close())
		}

		return listener, nil, nil
	}

	transport, err := newTransport(options)
	if err != nil {
		return nil, nil, err
	}

	listener, err := config.Listen(ctx, "tcp", options.Address)
	if err != nil {
		return nil, nil, fmt.Errorf("listen at %s: %w", options.Address, err)
	}

	return listener, transport, nil
}

// restrictSocket lets only the user and the group of the program connect, whatever the umask of the process is.
func restrictSocket(path string) error {
	const ofOwners = 0o770

	info, err := os.Lstat(path)
	if err == nil {
		err = os.Chmod(path, info.Mode().Perm()&ofOwners)
	}

	if err != nil {
		return fmt.Errorf("set permissions of the socket: %w", err)
	}

	return nil
}

// removeSocket removes the socket of a program that has ended. Two programs with one socket would both have operators.
func removeSocket(ctx context.Context, path string) error {
	info, err := os.Lstat(path)

	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("look for an old socket: %w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("listen at %s: the file exists and is no socket: choose another path", path)
	}

	dialer := net.Dialer{Timeout: time.Second}

	conn, err := dialer.DialContext(ctx, "unix", path)
	if err == nil {
		_ = conn.Close()
	}

	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("listen at %s: another program listens there: stop it, or choose another path", path)
	}

	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove the old socket: %w", err)
	}

	return nil
}

// newTransport returns credentials that require client certificates.
func newTransport(options Options) (credentials.TransportCredentials, error) {
	if options.CertFile == "" || options.KeyFile == "" || options.ClientCAFile == "" {
		return nil, errors.New("listen at an address: it needs a certificate, its key and the authorities of client certificates: " +
			"set all three files, or listen at unix:///PATH")
	}

	load := func(*tls.ClientHelloInfo) (*tls.Config, error) {
		cert, err := tls.LoadX509KeyPair(options.CertFile, options.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("read certificate: %w", err)
		}

		text, err := os.ReadFile(options.ClientCAFile)
		if err != nil {
			return nil, fmt.Errorf("read authorities of client certificates: %w", err)
		}

		authorities, err := bounds.ParseCABundle(text, x509.NewCertPool())
		if err != nil {
			return nil, fmt.Errorf("read authorities of client certificates: %w", err)
		}

		return &tls.Config{
			MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert},
			ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: authorities, NextProtos: []string{"h2"},
		}, nil
	}

	if _, err := load(nil); err != nil {
		return nil, err
	}

	return credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: load}), nil
}
