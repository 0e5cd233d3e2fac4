// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package recordings_test

import (
	"context"
	"net"
	"net/http"
	"time"
)

// recordedAt is in the days of the recordings.
var recordedAt = time.Date(2026, time.November, 1, 12, 0, 0, 0, time.UTC)

// dialer connects a client to a server through memory. In a bubble of testing/synctest, time does not pass while a goroutine
// waits for a socket, but it does while all wait for each other through memory.
type dialer chan net.Conn

func (d dialer) dialContext(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()

	select {
	case d <- server:
		return client, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Accept implements [net.Listener].
func (d dialer) Accept() (net.Conn, error) {
	conn, ok := <-d
	if !ok {
		return nil, http.ErrServerClosed
	}

	return conn, nil
}

// Close implements [net.Listener].
func (d dialer) Close() error {
	close(d)

	return nil
}

// Addr implements [net.Listener].
func (d dialer) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8006} }
