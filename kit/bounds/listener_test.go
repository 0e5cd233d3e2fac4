// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bounds_test

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/kit/bounds"
)

// TestConnectionsAreLimited checks that one address cannot use all connections of a server, and that a closed
// connection makes room for another one.
func TestConnectionsAreLimited(t *testing.T) {
	t.Parallel()

	const perAddress, total = 3, 4

	var refused atomic.Int64

	inner, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}

	listener := bounds.LimitConnections(inner, total, perAddress, func(string) { refused.Add(1) })
	t.Cleanup(func() { _ = listener.Close() })

	// The server sends a byte, and closes a connection when its client does.
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}

			go func() {
				_, _ = conn.Write([]byte{1})
				_, _ = io.Copy(io.Discard, conn)
				_ = conn.Close()
				_ = conn.Close() // counts once
			}()
		}
	}()

	// dial returns a connection from a loopback address, and whether the server serves it.
	dial := func(from string) (net.Conn, bool) {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}

		conn, err := dialer.DialContext(t.Context(), "tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}

		t.Cleanup(func() { _ = conn.Close() })

		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		_, err = conn.Read(make([]byte, 1))

		return conn, err == nil
	}

	var conns []net.Conn

	for i := range perAddress {
		conn, isServed := dial("127.0.0.1")
		if !isServed {
			t.Fatalf("connection %d is refused", i+1)
		}

		conns = append(conns, conn)
	}

	if _, isServed := dial("127.0.0.1"); isServed {
		t.Errorf("%d connections from one address are served, want at most %d", perAddress+1, perAddress)
	}

	if _, isServed := dial("127.0.0.2"); !isServed {
		t.Error("a connection from another address is refused")
	}

	if _, isServed := dial("127.0.0.3"); isServed {
		t.Errorf("%d connections are served, want at most %d", total+1, total)
	}

	if refused.Load() != 2 {
		t.Errorf("%d connections were reported as refused, want 2", refused.Load())
	}

	_ = conns[0].Close()

	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if _, isServed := dial("127.0.0.1"); isServed {
			break
		}

		if time.Now().After(deadline) {
			t.Fatal("a closed connection makes no room for another one")
		}
	}
}

// exhaustedListener fails once, as if the process had too many open files.
type exhaustedListener struct {
	net.Listener

	hasFailed atomic.Bool
}

func (l *exhaustedListener) Accept() (net.Conn, error) {
	if l.hasFailed.CompareAndSwap(false, true) {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: syscall.EMFILE}
	}

	return l.Listener.Accept()
}

// TestServerSurvivesTemporaryErrors checks that a server with the limits continues after an error that net/http treats
// as temporary, such as too many open files. net/http does not unwrap errors.
func TestServerSurvivesTemporaryErrors(t *testing.T) {
	t.Parallel()

	inner, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}

	server := &http.Server{
		ReadHeaderTimeout: time.Minute, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }),
	}
	t.Cleanup(func() { _ = server.Close() })

	ended := make(chan error, 1)

	go func() {
		ended <- server.Serve(bounds.LimitConnections(&exhaustedListener{Listener: inner}, 1, 1, func(string) {}))
	}()

	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+inner.Addr().String(), http.NoBody)
	if err != nil {
		t.Fatal(err)
	}

	served := make(chan error, 1)

	go func() {
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			err = resp.Body.Close()
		}

		served <- err
	}()

	select {
	case err := <-ended:
		t.Fatalf("the server ended: %v", err)
	case err := <-served:
		if err != nil {
			t.Error(err)
		}
	}
}
