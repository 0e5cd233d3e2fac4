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

// Add adds a runnable to the manager. If the runnable is a controller, Add makes its queue use the fleet's
// clock, so that requeue and back-off times follow that clock.
func (t *scopedManager) Add(part manager.Runnable) error {
	if t.clock != nil {
		if queue := reflect.Indirect(reflect.ValueOf(part)); queue.Kind() == reflect.Struct {
			// Use reflection, because controller-runtime does not export the type of its controllers, and has no
			// option that sets the queue of all controllers.
			if field := queue.FieldByName("NewQueue"); field.IsValid() && field.Type() == reflect.TypeOf(t.newQueue) {
				field.Set(reflect.ValueOf(t.newQueue))
			}
		}
	}

	return t.Manager.Add(part)
}

func (t *scopedManager) newQueue(
	name string, limiter workqueue.TypedRateLimiter[reconcile.Request],
) workqueue.TypedRateLimitingInterface[reconcile.Request] {
	return workqueue.NewTypedRateLimitingQueueWithConfig(limiter,
		workqueue.TypedRateLimitingQueueConfig[reconcile.Request]{Name: name, Clock: t.clock})
}

// timestampRewriter replaces the creation timestamps in responses of the API server, which uses the real
// clock, with times of another clock.
type timestampRewriter struct {
	clock clock.WithTicker

	mu sync.Mutex
	// replacements holds the replacement of each timestamp, so that a timestamp always gets the same one.
	replacements map[string]string
}

var creationTimestampPattern = regexp.MustCompile(`"creationTimestamp":"([^"]+)"`)

// wrapConfig returns a copy of the client configuration whose responses are rewritten.
func (a *timestampRewriter) wrapConfig(config *rest.Config) *rest.Config {
	out := rest.CopyConfig(config)
	out.ContentType, out.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	out.Wrap(func(next http.RoundTripper) http.RoundTripper { return &rewritingTransport{a, next} })

	return out
}

// rewrite replaces all creation timestamps in a text.
func (a *timestampRewriter) rewrite(text []byte) []byte {
	return creationTimestampPattern.ReplaceAllFunc(text, func(found []byte) []byte {
		a.mu.Lock()
		defer a.mu.Unlock()

		replacement, ok := a.replacements[string(found)]
		if !ok {
			replacement = fmt.Sprintf(`"creationTimestamp":%q`, a.clock.Now().UTC().Format(time.RFC3339))
			a.replacements[string(found)] = replacement
		}

		return []byte(replacement)
	})
}

type rewritingTransport struct {
	rewriter *timestampRewriter
	next     http.RoundTripper
}

// RoundTrip makes a call and rewrites its response. It removes the creation timestamp from the body of a PUT,
// because the API server rejects an object with another timestamp than its own.
func (t *rewritingTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method == http.MethodPut && request.Body != nil {
		body, err := io.ReadAll(request.Body)
		if err != nil {
			return nil, fmt.Errorf("read request body: %w", err)
		}

		body = creationTimestampPattern.ReplaceAll(body, []byte(`"creationTimestamp":null`))
		request = request.Clone(request.Context())
		request.Body, request.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	}

	response, err := t.next.RoundTrip(request)
	if err != nil {
		return nil, err
	}

	response.Body = &rewritingBody{Closer: response.Body, lines: bufio.NewReader(response.Body), rewriter: t.rewriter}
	response.ContentLength = -1
	response.Header.Del("Content-Length")

	return response, nil
}

// rewritingBody rewrites a response body line by line, because a watch sends each event as a line.
type rewritingBody struct {
	io.Closer

	lines     *bufio.Reader
	rewriter  *timestampRewriter
	remaining []byte
}

func (b *rewritingBody) Read(buffer []byte) (int, error) {
	if len(b.remaining) == 0 {
		line, err := b.lines.ReadBytes('\n')
		if len(line) == 0 {
			return 0, err
		}

		b.remaining = b.rewriter.rewrite(line)
	}

	n := copy(buffer, b.remaining)
	b.remaining = b.remaining[n:]

	return n, nil
}
