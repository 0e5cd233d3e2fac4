// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt_test

import (
	"encoding/binary"
	"io"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
)

// silentHost passes connections on to libvirtd, except for its events, which it counts.
type silentHost struct {
	dropped atomic.Int64

	mu    sync.Mutex
	conns []net.Conn
}

// disconnect ends all connections.
func (h *silentHost) disconnect() {
	h.mu.Lock()
	defer h.mu.Unlock()

	for _, conn := range h.conns {
		_ = conn.Close()
	}
}

// newSilentHost listens until the test ends.
func newSilentHost(t *testing.T, path string) *silentHost {
	t.Helper()

	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = listener.Close() })

	h := &silentHost{}

	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}

			server, err := (&net.Dialer{}).DialContext(t.Context(), "unix", shared.Socket())
			if err != nil {
				_ = client.Close()

				continue
			}

			h.mu.Lock()
			h.conns = append(h.conns, server)
			h.mu.Unlock()

			go func() {
				_, _ = io.Copy(server, client)
				_ = server.Close()
			}()
			go func() {
				h.passReplies(client, server)
				_ = client.Close()
			}()
		}
	}()

	return h
}

// passReplies copies messages that are no events until the connection ends.
func (h *silentHost) passReplies(client io.Writer, server io.Reader) {
	const lengthBytes, typeStart, typeEvent = 4, 16, 2

	for {
		length := make([]byte, lengthBytes)
		if _, err := io.ReadFull(server, length); err != nil {
			return
		}

		message := make([]byte, binary.BigEndian.Uint32(length))
		copy(message, length)

		if _, err := io.ReadFull(server, message[lengthBytes:]); err != nil {
			return
		}

		if binary.BigEndian.Uint32(message[typeStart:]) == typeEvent {
			h.dropped.Add(1)

			continue
		}

		if _, err := client.Write(message); err != nil {
			return
		}
	}
}

// A host that silently reports no changes is listed nevertheless, so a power-off is seen, and its owner is woken.
func TestSilentHostIsListed(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	socket := filepath.Join(s.dir, "silent")
	silent := newSilentHost(t, socket)

	var wakes atomic.Int64

	options := newOperator()
	options.ListInterval = 100 * time.Millisecond
	options.Wake = func(hypervisor.Owner) { wakes.Add(1) }

	p, spec := s.createThrough(socket, options)
	s.shutDown(spec.ID)
	s.eventually("a list wakes the owner", func() bool { return wakes.Load() > 0 })

	m, err := p.Get(t.Context(), hypervisor.MachineRef{ID: spec.ID, Owner: spec.Owner, PowerOffReported: true})
	if err != nil || m.State != hypervisor.StateStopped || silent.dropped.Load() == 0 {
		t.Errorf("want a machine that is off, without %d events, got %+v (%v)", silent.dropped.Load(), m, err)
	}

	s.must(conformance.Delete(t.Context(), p, hypervisor.MachineRef{ID: spec.ID, Owner: spec.Owner}))
}
