// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"sync"
)

// watcher is the body of a watch.
type watcher struct {
	selected call
	// events wakes the reader. pending are the events that it has not read, of which the caller holds the lock.
	events  chan []byte
	done    <-chan struct{}
	pending []byte
	closed  chan struct{}
	close   func()
}

// maxEvents is the number of events that a watch may be behind. An operator that is further behind is not simulated.
const maxEvents = 1 << 17

// watch returns a watch, with the objects that exist if the client asks for them. The caller holds the lock. The clients
// of the simulation start each watch with all objects, so the model keeps no history.
func (s *apiServer) watch(request *http.Request, objects *table, parsed call) io.ReadCloser {
	out := &watcher{
		selected: parsed, events: make(chan []byte, maxEvents), done: request.Context().Done(), closed: make(chan struct{}),
	}
	objects.watchers[out] = true
	out.close = sync.OnceFunc(func() {
		close(out.closed)

		s.mu.Lock()
		defer s.mu.Unlock()

		delete(objects.watchers, out)
	})

	if parsed.sendsInitialEvents {
		for _, found := range objects.find(parsed) {
			out.send("ADDED", found.text)
		}

		out.send("BOOKMARK", fmt.Appendf(nil,
			`{%s,"metadata":{"resourceVersion":"%d","annotations":{"k8s.io/initial-events-end":"true"}}}`,
			s.kinds[parsed.table], s.version))
	}

	return out
}

func (w *watcher) send(kind string, text []byte) {
	var event bytes.Buffer

	fmt.Fprintf(&event, `{"type":%q,"object":`, kind)
	event.Write(text)
	event.WriteString("}\n")

	w.events <- event.Bytes()
}

// Read returns the next event, or a part of it.
func (w *watcher) Read(buffer []byte) (int, error) {
	if len(w.pending) == 0 {
		select {
		case w.pending = <-w.events:
		case <-w.done:
			return 0, io.EOF
		case <-w.closed:
			return 0, io.EOF
		}
	}

	n := copy(buffer, w.pending)
	w.pending = w.pending[n:]

	return n, nil
}

// Close ends the watch.
func (w *watcher) Close() error {
	w.close()

	return nil
}
