// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hyperfleet/hyperfleet/api/exactjson"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
	"github.com/hyperfleet/hyperfleet/platform/client"
)

// maxKeptBody is the maximum size of a response body in a Handled, because an adapter keeps those of many resources.
const maxKeptBody = 8 << 10

// errNeedsCall is the error of a call in a run that must not send calls.
var errNeedsCall = errors.New("the event needs a call")

// callKey is the digest of a request.
type callKey [sha256.Size]byte

// Handled has what an event read from the fleet API, and what it sent. WithRequeue passes it to the next time that the
// event is handled. It does not change.
type Handled struct {
	responses map[callKey]*client.Response
	// calls are the calls in their order. Of two reports, the later one counts.
	calls []callKey
}

type requeueKey struct{}

// WithRequeue returns a context for Handle that marks an event as handled again because an object has changed. earlier
// is of the last Result for this event. It must be nil if another event of the resource was handled since, or at the same time.
func WithRequeue(ctx context.Context, earlier *Handled) context.Context {
	return context.WithValue(ctx, requeueKey{}, earlier)
}

// EarlierOf returns the earlier calls of the context of an event, and whether the event is requeued.
func EarlierOf(ctx context.Context) (earlier *Handled, isRequeue bool) {
	earlier, isRequeue = ctx.Value(requeueKey{}).(*Handled)

	return earlier, isRequeue
}

// repeat handles the event with the earlier responses of the API and the objects of the watches. It returns false if the
// event needs a call, because an object has to be written or read, or because the post actions would not send the same as
// before. The change of the object then matters, and the event has to be handled with all its calls.
func (r *run) repeat(ctx context.Context, earlier *Handled) bool {
	r.earlier = earlier

	for _, phase := range []func(context.Context){r.evaluateParams, r.evaluatePreconditions, r.runResources, r.runPost} {
		phase(ctx)

		if r.needsCall || !r.canContinue() || r.skipReason != "" {
			return false
		}
	}

	if !slices.Equal(r.calls, earlier.calls) {
		return false
	}

	r.completeTrace()
	r.result.Trace.Result.Reason = ReasonUnchanged

	return true
}

// handled returns the Handled of a run. It is nil if the run has failed, because the next one may succeed, and during
// a deletion, whose end no watch proves.
func (r *run) handled() *Handled {
	switch {
	case r.earlier != nil:
		return r.earlier
	case r.result.Status != Success || r.isResourceDeleting || r.responses == nil:
		return nil
	default:
		return &Handled{responses: r.responses, calls: r.calls}
	}
}

// log returns the logger of the event. A run that repeats an event logs nothing.
func (r *run) log() *slog.Logger {
	if r.earlier != nil {
		return slog.New(slog.DiscardHandler)
	}

	return r.p.Log
}

// send sends a request. A run that repeats an event returns the earlier response instead.
func (r *run) send(ctx context.Context, request *client.Call) (*client.Response, error) {
	if r.earlier == nil {
		return r.p.api.Call(ctx, *request)
	}

	key := r.keyOf(request)
	if response := r.earlier.responses[key]; response != nil {
		r.calls = append(r.calls, key)

		return response, nil
	}

	return nil, r.requireCall()
}

func (r *run) requireCall() error {
	r.needsCall = true

	return errNeedsCall
}

// keepResponse keeps a response for Handled.
func (r *run) keepResponse(request *client.Call, response *client.Response) {
	if r.responses == nil || r.earlier != nil {
		return
	}

	key := r.keyOf(request)
	if same := r.responses[key]; len(response.Body) > maxKeptBody || same != nil && !bytes.Equal(same.Body, response.Body) {
		r.responses = nil

		return
	}

	r.responses[key] = response
	r.calls = append(r.calls, key)
}

// keyOf returns the key of a request. It ignores the time of a status report, which differs in each report.
func (r *run) keyOf(request *client.Call) callKey {
	var report map[string]any

	body := request.Body
	if request.Method == http.MethodPut && r.isStatusURL(request.URL) && exactjson.Unmarshal([]byte(body), &report) == nil {
		delete(report, "observed_time")

		if text, err := json.Marshal(report); err == nil {
			body = string(text)
		}
	}

	return sha256.Sum256(fmt.Appendf(nil, "%q %q %q %q", request.Method, request.URL, request.Header, body))
}

// clients returns the clients of the resources phase.
func (r *run) clients() map[string]transport.Client {
	if r.earlier == nil {
		return r.p.Clients
	}

	out := make(map[string]transport.Client, len(r.p.Clients))
	for name, client := range r.p.Clients {
		out[name] = watchClient{Client: client, run: r}
	}

	return out
}

// watchClient is the client of a run that sends no calls. It has the objects of the watches.
type watchClient struct {
	transport.Client

	run *run
}

// Find returns objects of the watch. Only a live read proves that an entry has no object.
func (c watchClient) Find(
	ctx context.Context, query transport.Query, read transport.Read,
) ([]*unstructured.Unstructured, error) {
	if read == transport.Live {
		return nil, c.run.requireCall()
	}

	objects, err := c.Client.Find(ctx, query, transport.CacheOnly)
	if err != nil || read == transport.Cached && len(objects) == 0 {
		return nil, c.run.requireCall()
	}

	return objects, nil
}

func (c watchClient) Create(context.Context, *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	return nil, c.run.requireCall()
}

func (c watchClient) Apply(
	context.Context, *unstructured.Unstructured, *unstructured.Unstructured,
) (*unstructured.Unstructured, string, error) {
	return nil, "", c.run.requireCall()
}

func (c watchClient) Patch(context.Context, transport.Ref, map[string]any) (*unstructured.Unstructured, error) {
	return nil, c.run.requireCall()
}

func (c watchClient) Delete(context.Context, transport.Ref, metav1.DeletionPropagation) error {
	return c.run.requireCall()
}
