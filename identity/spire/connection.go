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

	// maxAttempts is the number of attempts of one call while the server is unavailable.
	maxAttempts = 3
	// retryDelay is the delay before the second attempt. The delay before each further attempt is
	// longer by the same amount. It is also the first delay before the client reconnects.
	retryDelay = 100 * time.Millisecond
	// maxReconnectDelay limits the delay between two attempts to connect.
	maxReconnectDelay = 5 * time.Second
)

// connection is the connection to the server. It connects when it is first used, so the operator can
// start while the SPIRE server is unavailable.
type connection struct {
	options     Options
	trustDomain spiffeid.TrustDomain

	mu     sync.Mutex
	conn   *grpc.ClientConn
	source *workloadapi.X509Source
}

// validate returns an error if an address is not valid.
func (c *connection) validate() error {
	if socket, ok := strings.CutPrefix(c.options.Address, unixScheme); ok {
		if !path.IsAbs(socket) {
			return fmt.Errorf("validate address of SPIRE server %q: %w", c.options.Address, errAddress)
		}

		return nil
	}

	if _, _, err := net.SplitHostPort(c.options.Address); err != nil {
		return fmt.Errorf("validate address of SPIRE server %q: %w", c.options.Address, errAddress)
	}

	if socket, ok := strings.CutPrefix(c.options.WorkloadAPI, unixScheme); !ok || !path.IsAbs(socket) {
		return fmt.Errorf("validate address of Workload API %q: %w", c.options.WorkloadAPI, errSocket)
	}

	return nil
}

// connect returns the gRPC connection and creates it if it does not exist.
func (c *connection) connect(ctx context.Context) (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.conn != nil {
		return c.conn, nil
	}

	transport, err := c.newTransportCredentials(ctx)
	if err != nil {
		return nil, err
	}

	conn, err := grpc.NewClient(c.target(),
		grpc.WithTransportCredentials(transport),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           reconnectBackoff(),
			MinConnectTimeout: c.options.Timeout,
		}),
		grpc.WithUnaryInterceptor(c.interceptUnary), grpc.WithStreamInterceptor(c.interceptStream),
	)
	if err != nil {
		return nil, wrapError("connect to SPIRE server", err)
	}

	c.conn = conn

	return conn, nil
}

// reconnectBackoff returns the back-off between two attempts to connect to the server.
func reconnectBackoff() backoff.Config {
	config := backoff.DefaultConfig
	config.BaseDelay, config.MaxDelay = retryDelay, maxReconnectDelay

	return config
}

func (c *connection) target() string {
	if strings.HasPrefix(c.options.Address, unixScheme) {
		return c.options.Address
	}

	return "dns:///" + c.options.Address
}

// newTransportCredentials returns the credentials for the connection to the server. For an address
// HOST:PORT, they are the operator's own SVID from the Workload API. For a Unix socket, there are none,
// because the file permissions of the socket control the access.
func (c *connection) newTransportCredentials(ctx context.Context) (credentials.TransportCredentials, error) {
	if strings.HasPrefix(c.options.Address, unixScheme) {
		return insecure.NewCredentials(), nil
	}

	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()

	source, err := workloadapi.NewX509Source(ctx, workloadapi.WithClientOptions(workloadapi.WithAddr(c.options.WorkloadAPI)))
	if err != nil {
		return nil, wrapError("get own SVID from Workload API "+c.options.WorkloadAPI, err)
	}

	svid, err := source.GetX509SVID()
	if err == nil && svid.ID.TrustDomain() != c.trustDomain {
		err = newMismatchError(c.trustDomain.Name(), svid.ID.TrustDomain().Name())
	}

	if err != nil {
		_ = source.Close()

		return nil, wrapError("read own SVID", err)
	}

	server, err := spiffeid.FromPath(c.trustDomain, serverPath)
	if err != nil {
		_ = source.Close()

		return nil, wrapError("build SPIFFE ID of SPIRE server", err)
	}

	c.source = source

	return credentials.NewTLS(tlsconfig.MTLSClientConfig(source, source, tlsconfig.AuthorizeID(server))), nil
}

func (c *connection) close() error {
	c.mu.Lock()
	defer c.mu.Unlock()

	var err error

	if c.conn != nil {
		err = c.conn.Close()
	}

	if c.source != nil {
		err = errors.Join(err, c.source.Close())
	}

	c.conn, c.source = nil, nil

	if err != nil {
		return fmt.Errorf("close connection to SPIRE server: %w", err)
	}

	return nil
}

// interceptUnary retries a call while the server is unavailable, and reports each attempt to
// Options.Observe. Options.Timeout limits all attempts together. The server may have executed an attempt
// that failed. A retry is safe nevertheless, because all calls except CreateJoinToken are idempotent. If
// a retry of CreateJoinToken creates a second token, createToken revokes the first.
func (c *connection) interceptUnary(
	ctx context.Context, method string, request, reply any, conn *grpc.ClientConn,
	invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()

	for attempt := 1; ; attempt++ {
		start := c.options.Clock.Now()
		err := invoke(ctx, method, request, reply, conn, opts...)
		c.reportCall(method, start, err)

		if status.Code(err) != codes.Unavailable || attempt == maxAttempts {
			return err
		}

		timer := time.NewTimer(time.Duration(attempt) * retryDelay)

		select {
		case <-ctx.Done():
			timer.Stop()

			return err
		case <-timer.C:
		}
	}
}

// interceptStream reports a stream to Options.Observe when it ends. It sets no timeout. The caller
// that opens a stream has to set one.
func (c *connection) interceptStream(
	ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string,
	open grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	start := c.options.Clock.Now()

	return open(ctx, desc, conn, method, append(opts, grpc.OnFinish(func(err error) {
		c.reportCall(method, start, err)
	}))...)
}

// reportCall reports a call to Options.Observe by the method name without the service name. It reports
// the responses NotFound and AlreadyExists as success.
func (c *connection) reportCall(method string, start time.Time, err error) {
	if c.options.Observe == nil {
		return
	}

	switch status.Code(err) { //nolint:exhaustive // err stays as it is for all other codes
	case codes.DeadlineExceeded:
		err = context.DeadlineExceeded
	case codes.Canceled:
		err = context.Canceled
	case codes.NotFound, codes.AlreadyExists:
		err = nil // the server has responded
	}

	c.options.Observe(path.Base(method), c.options.Clock.Since(start), err)
}
