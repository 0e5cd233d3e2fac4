// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"regexp"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Add adds a part of the operator. The queue of a controller goes by the fleet's clock: what a
// reconciler asks to be called again after, and what its errors cost, is of that time.
func (t *tenant) Add(part manager.Runnable) error {
	if t.clock != nil {
		if queue := reflect.Indirect(reflect.ValueOf(part)); queue.Kind() == reflect.Struct {
			// controller-runtime keeps the type to itself, and gives no other way to all of them.
			if field := queue.FieldByName("NewQueue"); field.IsValid() && field.Type() == reflect.TypeOf(t.queue) {
				field.Set(reflect.ValueOf(t.queue))
			}
		}
	}

	return t.Manager.Add(part)
}

func (t *tenant) queue(
	name string, limiter workqueue.TypedRateLimiter[reconcile.Request],
) workqueue.TypedRateLimitingInterface[reconcile.Request] {
	return workqueue.NewTypedRateLimitingQueueWithConfig(limiter,
		workqueue.TypedRateLimitingQueueConfig[reconcile.Request]{Name: name, Clock: t.clock})
}

// apiTime has the API server, which goes by the real clock, tell when objects were made by
// another.
type apiTime struct {
	clock clock.WithTicker

	mu sync.Mutex
	// told is what each second was told as, for good.
	told map[string]string
}

var createdAt = regexp.MustCompile(`"creationTimestamp":"([^"]+)"`)

// way gives a configuration that leads over it.
func (a *apiTime) way(config *rest.Config) *rest.Config {
	out := rest.CopyConfig(config)
	out.ContentType, out.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	out.Wrap(func(next http.RoundTripper) http.RoundTripper { return &apiTimeTransport{a, next} })

	return out
}

// tell gives the words of the API server with the times of the clock.
func (a *apiTime) tell(words []byte) []byte {
	return createdAt.ReplaceAllFunc(words, func(found []byte) []byte {
		a.mu.Lock()
		defer a.mu.Unlock()

		text, ok := a.told[string(found)]
		if !ok {
			text = fmt.Sprintf(`"creationTimestamp":%q`, a.clock.Now().UTC().Format(time.RFC3339))
			a.told[string(found)] = text
		}

		return []byte(text)
	})
}

type apiTimeTransport struct {
	time *apiTime
	next http.RoundTripper
}

// RoundTrip makes a call. The server takes no time of an object's making but its own.
func (t *apiTimeTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method == http.MethodPut && request.Body != nil {
		body, err := io.ReadAll(request.Body)
		if err != nil {
			return nil, fmt.Errorf("read what is to be written: %w", err)
		}

		body = createdAt.ReplaceAll(body, []byte(`"creationTimestamp":null`))
		request = request.Clone(request.Context())
		request.Body, request.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	}

	response, err := t.next.RoundTrip(request)
	if err != nil {
		return nil, err
	}

	response.Body = &apiTimeBody{Closer: response.Body, lines: bufio.NewReader(response.Body), time: t.time}
	response.ContentLength = -1
	response.Header.Del("Content-Length")

	return response, nil
}

// apiTimeBody reads line by line: a watch has one for each event.
type apiTimeBody struct {
	io.Closer

	lines *bufio.Reader
	time  *apiTime
	rest  []byte
}

func (b *apiTimeBody) Read(into []byte) (int, error) {
	if len(b.rest) == 0 {
		line, err := b.lines.ReadBytes('\n')
		if len(line) == 0 {
			return 0, err
		}

		b.rest = b.time.tell(line)
	}

	n := copy(into, b.rest)
	b.rest = b.rest[n:]

	return n, nil
}
