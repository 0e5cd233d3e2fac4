// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bounds

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
)

// TrustFile makes a transport trust the CAs in a PEM file and those of base, such as the system's pool, which
// may be nil. The transport reads the file again for each new connection, so that the CA can be renewed without
// a restart. While the file is unreadable, the transport trusts the CAs that it read last. A connection through
// a proxy trusts the CAs that the file had when TrustFile was called. Change the other settings of the
// transport first.
func TrustFile(transport *http.Transport, file string, base *x509.CertPool) error {
	initial, err := LoadTLSConfig(file, base)
	if err != nil {
		return err
	}

	var last atomic.Pointer[tls.Config]

	last.Store(initial)

	dial, timeout := transport.DialContext, transport.TLSHandshakeTimeout
	transport.TLSClientConfig = initial
	transport.DialTLSContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}

		if current, err := LoadTLSConfig(file, base); err == nil {
			last.Store(current)
		}

		config := last.Load().Clone()
		if config.ServerName, _, err = net.SplitHostPort(address); err != nil {
			_ = conn.Close()

			return nil, fmt.Errorf("connect to %s: %w", address, err)
		}

		config.NextProtos = []string{"h2", "http/1.1"} // as http.Transport does without a function of its own

		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()

		return handshake(ctx, tls.Client(conn, config))
	}

	return nil
}

// handshake returns the connection after its handshake, or closes it.
func handshake(ctx context.Context, conn *tls.Conn) (net.Conn, error) {
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = conn.Close()

		return nil, err
	}

	return conn, nil
}
