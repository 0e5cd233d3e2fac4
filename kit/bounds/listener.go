// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bounds

import (
	"net"
	"net/netip"
	"sync"
)

const (
	// MaxRequestHeader is the largest header of a request that a server reads. Callers without credentials can
	// send headers, and the default of net/http is 1 MiB for each connection.
	MaxRequestHeader = 32 << 10
	// MaxConnections is how many connections a server has at the same time.
	MaxConnections = 2048
	// MaxConnectionsOfAddress is how many of them are from one address. All machines may have the address of an
	// ingress.
	MaxConnectionsOfAddress = MaxConnections / 4
)

// LimitConnections returns a listener that closes new connections while it has total connections, or perAddress
// connections from the same address. refused is called for each connection that it closes.
func LimitConnections(listener net.Listener, total, perAddress int, refused func(address string)) net.Listener {
	return &limitedListener{
		Listener: listener, total: total, perAddress: perAddress, refused: refused, open: map[netip.Addr]int{},
	}
}

// limitedListener counts the open connections by address.
type limitedListener struct {
	net.Listener

	total, perAddress int
	refused           func(address string)

	mu sync.Mutex
	// count is the number of open connections, and open their number by address.
	count int
	open  map[netip.Addr]int
}

// Accept returns the next connection within the limits.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err //nolint:wrapcheck // net/http continues after temporary errors, which it does not unwrap
		}

		remote, _ := netip.ParseAddrPort(conn.RemoteAddr().String())
		address := remote.Addr().Unmap()

		if l.tryCount(address) {
			return &limitedConn{Conn: conn, release: sync.OnceFunc(func() { l.release(address) })}, nil
		}

		l.refused(address.String())

		_ = conn.Close()
	}
}

// tryCount counts a connection. If the connection exceeds a limit, it is not counted, and tryCount returns false.
func (l *limitedListener) tryCount(address netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.count >= l.total || l.open[address] >= l.perAddress {
		return false
	}

	l.count++
	l.open[address]++

	return true
}

func (l *limitedListener) release(address netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.count--
	l.open[address]--

	if l.open[address] == 0 {
		delete(l.open, address)
	}
}

// limitedConn is a connection that is counted until it is closed.
type limitedConn struct {
	net.Conn

	release func()
}

// Close closes the connection and stops counting it.
func (c *limitedConn) Close() error {
	defer c.release()

	return c.Conn.Close() //nolint:wrapcheck // net/http compares the errors of connections
}
