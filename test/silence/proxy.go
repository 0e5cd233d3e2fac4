// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package silence

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

const (
	waitTimeout  = time.Minute
	pollInterval = 20 * time.Millisecond
)

// Proxy forwards connections to another address until it is silenced or closed.
type Proxy struct {
	// Address is the address of the proxy.
	Address string

	target string

	mu       sync.Mutex
	open     []io.Closer
	accepted int
	isSilent bool
	isClosed bool
}

// Listen returns a server that accepts connections, reads nothing and never answers.
func Listen(t testing.TB) *Proxy {
	t.Helper()

	p := NewProxy(t, "")
	p.Silence()

	return p
}

// ListenUnix is Listen on the socket at path.
func ListenUnix(t testing.TB, path string) *Proxy {
	t.Helper()

	p := newProxy(t, "unix", path, "")
	p.Silence()

	return p
}

// NewProxy returns a proxy for an address, which it closes at the end of the test.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()

	return newProxy(t, "tcp", "127.0.0.1:0", target)
}

func newProxy(t testing.TB, network, address, target string) *Proxy {
	t.Helper()

	listener, err := (&net.ListenConfig{}).Listen(t.Context(), network, address)
	if err != nil {
		t.Fatal(err)
	}

	p := &Proxy{Address: listener.Addr().String(), target: target, open: []io.Closer{listener}}
	t.Cleanup(p.Close)

	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}

			p.serve(conn)
		}
	}()

	return p
}

// Silence makes the proxy stop reading and answering. It keeps connections open, and accepts new ones.
func (p *Proxy) Silence() {
	p.mu.Lock()
	defer p.mu.Unlock()

	p.isSilent, p.accepted = true, 0
}

// Close closes the proxy and its connections.
func (p *Proxy) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()

	p.isClosed = true

	for _, item := range p.open {
		_ = item.Close()
	}
}

// WaitForConnection waits until the proxy has accepted a connection since it was silenced.
func (p *Proxy) WaitForConnection(t testing.TB) {
	t.Helper()

	for end := time.Now().Add(waitTimeout); ; time.Sleep(pollInterval) {
		p.mu.Lock()
		accepted := p.accepted
		p.mu.Unlock()

		if accepted > 0 {
			return
		}

		if time.Now().After(end) {
			t.Fatalf("nothing connects to %s", p.Address)
		}
	}
}

func (p *Proxy) serve(from net.Conn) {
	if p.keep(from) {
		return
	}

	to, err := (&net.Dialer{}).Dial("tcp", p.target)
	if err != nil {
		_ = from.Close()

		return
	}

	p.keep(to)

	go p.copy(to, from)
	go p.copy(from, to)
}

// keep keeps a connection until the proxy is closed, and returns true if the proxy does not forward it.
func (p *Proxy) keep(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()

	p.open = append(p.open, conn)
	p.accepted++

	if p.isClosed {
		_ = conn.Close()
	}

	return p.isSilent || p.isClosed
}

// copy forwards data until the proxy is silenced. It closes the other side if one side ends.
func (p *Proxy) copy(to, from net.Conn) {
	buffer := make([]byte, 64<<10)

	for {
		n, err := from.Read(buffer)

		p.mu.Lock()
		isSilent := p.isSilent
		p.mu.Unlock()

		if isSilent {
			return
		}

		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}

		if err != nil {
			_ = to.Close()

			return
		}
	}
}
