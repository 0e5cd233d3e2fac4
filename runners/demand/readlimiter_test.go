// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/runners/demand"
)

// blockingBody is a request body that reports the first read, and blocks until the test ends it.
type blockingBody struct {
	once    sync.Once
	onRead  func()
	unblock chan struct{}
}

func (w *blockingBody) Read([]byte) (int, error) {
	w.once.Do(w.onRead)
	<-w.unblock

	return 0, io.EOF
}

// TestSlowBodiesDoNotBlockOthers checks that slow senders use no slot for verified webhooks, and that one
// address uses at most half of the slots for reading.
func TestSlowBodiesDoNotBlockOthers(t *testing.T) {
	t.Parallel()

	namespace, repository := env.Namespace(t), "acme/"+newUniqueName(t)
	createPool(t, namespace, "linux", repository, "s3cret", "linux")

	const reading = 4 // of one slot

	handler := newTestReceiver(env.Client, clock.RealClock{}, func(c *demand.ReceiverConfig) { c.Parallel = 1 })
	end, start := make(chan struct{}), make(chan struct{}, reading*2)

	var all sync.WaitGroup

	for range reading * 2 {
		all.Go(func() {
			request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/webhooks/github",
				&blockingBody{onRead: func() { start <- struct{}{} }, unblock: end})
			request.Header.Set("Content-Type", "application/json")
			request.RemoteAddr = "192.0.2.66:1"
			handler.ServeHTTP(httptest.NewRecorder(), request)
		})
	}

	// Wait until one address uses its maximum number of slots.
	for range reading / 2 {
		<-start
	}

	response := serveRequest(handler, newWebhookRequest(newWebhookBody(repository, 7, "queued", "linux"), "s3cret"))
	if response.Code != http.StatusAccepted {
		t.Errorf("a verified webhook during slow requests: status %d, %s", response.Code, response.Body)
	}

	if more := len(start); more > 0 {
		t.Errorf("%d further bodies of one address were read", more)
	}

	close(end)
	all.Wait()
}

// Behind an ingress all senders have one address. While other requests wait, slow requests are rejected with
// a response, and do not look like requests that ended early.
func TestSlowBodiesOfOneAddressAreCutOff(t *testing.T) {
	t.Parallel()

	namespace, repository := env.Namespace(t), "acme/"+newUniqueName(t)
	createPool(t, namespace, "linux", repository, "s3cret", "linux")

	// Two bodies of one address are read at a time, so all of them would take five times the timeout of a
	// webhook.
	const slow = 24

	server := httptest.NewServer(newTestReceiver(env.Client, clock.RealClock{}, func(c *demand.ReceiverConfig) { c.Parallel = 1 }))
	t.Cleanup(server.Close)

	statusLines := make(chan string, slow)

	for range slow {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}

		t.Cleanup(func() { _ = conn.Close() })

		if _, err := io.WriteString(conn, "POST /webhooks/github HTTP/1.1\r\nHost: operator\r\nContent-Type: application/json\r\n"+
			"Content-Length: 100\r\n\r\n{"); err != nil {
			t.Fatal(err)
		}

		go func() {
			line, _ := bufio.NewReader(conn).ReadString('\n')
			statusLines <- line
		}()
	}

	given := newWebhookRequest(newWebhookBody(repository, 8, "queued", "linux"), "s3cret")

	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/webhooks/github", given.Body)
	if err != nil {
		t.Fatal(err)
	}

	request.Header = given.Header

	response, err := server.Client().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()

	if response.StatusCode != http.StatusAccepted {
		t.Errorf("a verified webhook behind slow requests of its address: status %d", response.StatusCode)
	}

	if line := <-statusLines; !strings.HasPrefix(line, "HTTP/1.1 503 ") {
		t.Errorf("response to a slow request: %q", line)
	}
}
