// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package spire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

const (
	unixScheme = "unix://"

	// tries of one call that finds no server.
	tries = 3
	// pause before the second try; it grows with each.
	pause = 100 * time.Millisecond
	// maxPause bounds the pause between two tries to connect.
	maxPause = 5 * time.Second
)

// link is the connection to the server. It is made when it is first needed, so that an
// operator starts without its SPIRE server too.
type link struct {
	options     Options
	trustDomain spiffeid.TrustDomain

	mu     sync.Mutex
	conn   *grpc.ClientConn
	source *workloadapi.X509Source
}

// check says what is wrong with the addresses.
func (l *link) check() error {
	if socket, ok := strings.CutPrefix(l.options.Address, unixScheme); ok {
		if !path.IsAbs(socket) {
			return fmt.Errorf("read address of SPIRE server %q: %w", l.options.Address, errAddress)
		}

		return nil
	}

	if _, _, err := net.SplitHostPort(l.options.Address); err != nil {
		return fmt.Errorf("read address of SPIRE server %q: %w", l.options.Address, errAddress)
	}

	if socket, ok := strings.CutPrefix(l.options.WorkloadAPI, unixScheme); !ok || !path.IsAbs(socket) {
		return fmt.Errorf("read address of Workload API %q: %w", l.options.WorkloadAPI, errSocket)
	}

	return nil
}

// connect gives the connection.
func (l *link) connect(ctx context.Context) (*grpc.ClientConn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.conn != nil {
		return l.conn, nil
	}

	transport, err := l.transport(ctx)
	if err != nil {
		return nil, err
	}

	conn, err := grpc.NewClient(l.target(),
		grpc.WithTransportCredentials(transport),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           reconnect(),
			MinConnectTimeout: l.options.Timeout,
		}),
		grpc.WithUnaryInterceptor(l.call), grpc.WithStreamInterceptor(l.stream),
	)
	if err != nil {
		return nil, failed("connect to SPIRE server", err)
	}

	l.conn = conn

	return conn, nil
}

// reconnect says how soon a server that was not found is looked for again.
func reconnect() backoff.Config {
	config := backoff.DefaultConfig
	config.BaseDelay, config.MaxDelay = pause, maxPause

	return config
}

func (l *link) target() string {
	if strings.HasPrefix(l.options.Address, unixScheme) {
		return l.options.Address
	}

	return "dns:///" + l.options.Address
}

// transport shows the operator's SVID; the socket's own rights need none.
func (l *link) transport(ctx context.Context) (credentials.TransportCredentials, error) {
	if strings.HasPrefix(l.options.Address, unixScheme) {
		return insecure.NewCredentials(), nil
	}

	ctx, cancel := context.WithTimeout(ctx, l.options.Timeout)
	defer cancel()

	source, err := workloadapi.NewX509Source(ctx, workloadapi.WithClientOptions(workloadapi.WithAddr(l.options.WorkloadAPI)))
	if err != nil {
		return nil, failed("get own SVID from Workload API "+l.options.WorkloadAPI, err)
	}

	svid, err := source.GetX509SVID()
	if err == nil && svid.ID.TrustDomain() != l.trustDomain {
		err = mismatch(l.trustDomain.Name(), svid.ID.TrustDomain().Name())
	}

	if err != nil {
		_ = source.Close()

		return nil, failed("read own SVID", err)
	}

	server, err := spiffeid.FromPath(l.trustDomain, serverPath)
	if err != nil {
		_ = source.Close()

		return nil, failed("name SPIRE server", err)
	}

	l.source = source

	return credentials.NewTLS(tlsconfig.MTLSClientConfig(source, source, tlsconfig.AuthorizeID(server))), nil
}

func (l *link) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()

	var err error

	if l.conn != nil {
		err = l.conn.Close()
	}

	if l.source != nil {
		err = errors.Join(err, l.source.Close())
	}

	l.conn, l.source = nil, nil

	if err != nil {
		return fmt.Errorf("close connection to SPIRE server: %w", err)
	}

	return nil
}

// call bounds a call in time, tries it again where no server was found, and has it counted.
// A server that was not found has done nothing; all of a registry's calls may also be
// repeated, but for the making of a token, which has its own look at what is there.
func (l *link) call(
	ctx context.Context, method string, request, reply any, conn *grpc.ClientConn,
	invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	ctx, cancel := context.WithTimeout(ctx, l.options.Timeout)
	defer cancel()

	for try := 1; ; try++ {
		start := l.options.Clock.Now()
		err := invoke(ctx, method, request, reply, conn, opts...)
		l.observe(method, start, err)

		if status.Code(err) != codes.Unavailable || try == tries {
			return err
		}

		timer := time.NewTimer(time.Duration(try) * pause)

		select {
		case <-ctx.Done():
			timer.Stop()

			return err
		case <-timer.C:
		}
	}
}

// stream has a stream counted; whoever opens one bounds it in time.
func (l *link) stream(
	ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string,
	open grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	start := l.options.Clock.Now()

	return open(ctx, desc, conn, method, append(opts, grpc.OnFinish(func(err error) {
		l.observe(method, start, err)
	}))...)
}

// observe tells of a call by its name without the service's.
func (l *link) observe(method string, start time.Time, err error) {
	if l.options.Observe == nil {
		return
	}

	switch status.Code(err) { //nolint:exhaustive // others are plain errors
	case codes.DeadlineExceeded:
		err = context.DeadlineExceeded
	case codes.Canceled:
		err = context.Canceled
	case codes.NotFound, codes.AlreadyExists:
		err = nil // an answer
	}

	l.options.Observe(path.Base(method), l.options.Clock.Since(start), err)
}
