// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/runners/demand"
)

// waiting is a body that says when it is read, and ends when it is told to.
type waiting struct {
	begun sync.Once
	read  func()
	end   chan struct{}
}

func (w *waiting) Read([]byte) (int, error) {
	w.begun.Do(w.read)
	<-w.end

	return 0, io.EOF
}

// TestSlowBodiesKeepNobodyWaiting: who sends slowly holds no place of verified webhooks, and
// one address holds no more than half of those for reading.
func TestSlowBodiesKeepNobodyWaiting(t *testing.T) {
	t.Parallel()

	namespace, repository := env.Namespace(t), "acme/"+own(t)
	hook(t, namespace, "linux", repository, "s3cret", "linux")

	const reading = 4 // of one slot

	handler := receiverOf(env.Client, clock.RealClock{}, func(c *demand.ReceiverConfig) { c.Parallel = 1 })
	end, begun := make(chan struct{}), make(chan struct{}, reading*2)

	var all sync.WaitGroup

	for range reading * 2 {
		all.Go(func() {
			request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/webhooks/github",
				&waiting{read: func() { begun <- struct{}{} }, end: end})
			request.Header.Set("Content-Type", "application/json")
			request.RemoteAddr = "192.0.2.66:1"
			handler.ServeHTTP(httptest.NewRecorder(), request)
		})
	}

	// As many as may from one address are at it.
	for range reading / 2 {
		<-begun
	}

	answer := answerOf(handler, post(body(repository, 7, "queued", "linux"), "s3cret"))
	if answer.Code != http.StatusAccepted {
		t.Errorf("a verified webhook beside slow ones: status %d, %s", answer.Code, answer.Body)
	}

	if more := len(begun); more > 0 {
		t.Errorf("%d bodies more were read of one address", more)
	}

	close(end)
	all.Wait()
}
