// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kill

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// lateDelay is the time between the start of the next operator and the effect of a late call. If that
// operator makes the same call earlier, the late call takes effect then.
const lateDelay = time.Second

// trap records every call of a lifecycle, and kills the operator at its boundary. If the boundary is nil,
// the trap only records calls.
type trap struct {
	placeholders placeholders
	boundary     *Boundary
	// kill kills the operator and returns when its process has ended.
	kill func()
	fail func(format string, args ...any)
	// killed is closed when the operator's process has ended. callDone is closed when the call at the
	// boundary has ended, for the timings Before and Late of calls to the hypervisor. restarted is closed
	// when the next operator has started.
	killed, callDone, restarted chan struct{}

	mu      sync.Mutex
	calls   []Call
	counts  map[Call]int
	pending map[int64]Call
	// removeFault removes the fault that makes the call at the boundary fail.
	removeFault func()
}

func newTrap(boundary *Boundary, kill func(), fail func(string, ...any)) *trap {
	return &trap{
		placeholders: newNames(), boundary: boundary, kill: kill, fail: fail,
		killed: make(chan struct{}), callDone: make(chan struct{}), restarted: make(chan struct{}),
		counts: map[Call]int{}, pending: map[int64]Call{},
	}
}

// record records a call, and returns it with its number.
func (t *trap) record(call Call) Call {
	t.mu.Lock()
	defer t.mu.Unlock()

	t.counts[call]++
	call.Nth = t.counts[call]
	t.calls = append(t.calls, call)

	return call
}

// listCalls returns the calls so far.
func (t *trap) listCalls() []Call {
	t.mu.Lock()
	defer t.mu.Unlock()

	return append([]Call(nil), t.calls...)
}

// isBoundary returns true if the boundary is at this call and has one of the timings.
func (t *trap) isBoundary(call Call, timings ...Timing) bool {
	if t.boundary == nil || call != t.boundary.Call {
		return false
	}

	return slices.Contains(timings, t.boundary.Timing)
}

// killOperator kills the operator, and signals that it has ended.
func (t *trap) killOperator() {
	t.kill()
	close(t.killed)
}

// onCall returns a function that handles the calls to the hypervisor.
func (t *trap) onCall(server *pve.Server) func(pve.Call) {
	return func(c pve.Call) {
		call, ok := t.placeholders.convertPVE(c)
		if !ok {
			return
		}

		if c.Phase == pve.PhaseAfter {
			t.mu.Lock()
			call, ok = t.pending[c.Seq]
			t.mu.Unlock()

			switch {
			case !ok:
			case t.isBoundary(call, After):
				t.killOperator()
			case t.isBoundary(call, Before):
				t.removeFault()
				close(t.callDone)
			case t.isBoundary(call, Late):
				close(t.callDone)
			}

			return
		}

		call = t.record(call)
		if !t.isBoundary(call, Before, After, Late) {
			return
		}

		t.mu.Lock()
		t.pending[c.Seq] = call
		t.mu.Unlock()

		switch t.boundary.Timing {
		case Before:
			// Make the hypervisor fail the call, so that the call takes no effect.
			t.removeFault = server.AddFault(pve.Fault{Kind: pve.FaultError, Method: c.Method, Path: c.Path, Count: 1})
			t.killOperator()
		case Late:
			t.killOperator()
			<-t.restarted
			t.waitForRepeat(call)
		case After:
		}
	}
}

// waitForRepeat waits until the next operator makes the same call, but at most for lateDelay.
func (t *trap) waitForRepeat(call Call) {
	key := call
	key.Nth = 0
	deadline := time.Now().Add(lateDelay)

	for time.Now().Before(deadline) {
		t.mu.Lock()
		isRepeated := t.counts[key] > call.Nth
		t.mu.Unlock()

		if isRepeated {
			return
		}

		time.Sleep(lateDelay / 100)
	}
}

// startForgeProxy starts a proxy to the CI platform (the forge), which records the operator's requests as calls; see
// convertForge. It returns the proxy's URL.
func (t *trap) startForgeProxy(tb testing.TB, f *fleet.Fleet) string {
	tb.Helper()

	target, err := url.Parse(f.GitHub.URL)
	if err != nil {
		tb.Fatal(err)
	}

	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = r.In.Host
	}}

	return t.startProxy(tb, proxy, t.placeholders.convertForge)
}

// startKubeProxy starts a proxy that records the operator's writes of addresses to the API server. It
// returns the client configuration for the proxy.
func (t *trap) startKubeProxy(tb testing.TB, f *fleet.Fleet) *rest.Config {
	tb.Helper()

	target, err := url.Parse(f.Env.Config.Host)
	if err != nil {
		tb.Fatal(err)
	}

	transport, err := rest.TransportFor(f.Env.Config)
	if err != nil {
		tb.Fatal(err)
	}

	proxy := &httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) },
		// A killed operator has closed its connections.
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	return &rest.Config{Host: t.startProxy(tb, proxy, convertKube)}
}

// startProxy starts a server that records the calls of a lifecycle, forwards them to a handler, and kills
// the operator at the boundary. It returns the server's URL.
func (t *trap) startProxy(tb testing.TB, server http.Handler, parse func(*http.Request) (Call, bool)) string {
	tb.Helper()

	var sprung atomic.Bool

	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		call, ok := parse(r)
		if !ok {
			server.ServeHTTP(w, r)

			return
		}

		call = t.record(call)
		if t.isBoundary(call, Before) {
			t.killOperator()
			panic(http.ErrAbortHandler)
		}

		if call.Server == serverKube {
			call.Nth = 1 // the operator repeats a write after a conflict
		}

		if !t.isBoundary(call, After) {
			server.ServeHTTP(w, r)

			return
		}

		recorder := httptest.NewRecorder()
		server.ServeHTTP(recorder, r)

		if (call.Server != serverKube || recorder.Code == http.StatusOK) && sprung.CompareAndSwap(false, true) {
			t.killOperator()
			panic(http.ErrAbortHandler)
		}

		maps.Copy(w.Header(), recorder.Header())
		w.WriteHeader(recorder.Code)
		_, _ = w.Write(recorder.Body.Bytes())
	}))
	tb.Cleanup(front.Close)
	// Close the connections of watches, which stay open as long as their operator runs. cleanUp has killed the
	// last operator before.
	tb.Cleanup(front.CloseClientConnections)

	return front.URL
}

// wrapWebhooks returns a handler that records the first webhook, which contains the job, and forwards all
// requests to the operator. If the boundary is after that webhook, it kills the operator before it sends
// the response. The operator must respond with status 202, and must not lose the job after that.
func (t *trap) wrapWebhooks(operator http.Handler) http.Handler {
	var first sync.Once

	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var (
			call    Call
			isFirst bool
		)

		if strings.HasPrefix(r.URL.Path, "/webhooks/") {
			first.Do(func() {
				call, isFirst = t.record(Call{Server: serverWebhook, Method: r.Method, Pattern: r.URL.Path}), true
			})
		}

		if !isFirst || !t.isBoundary(call, After) {
			operator.ServeHTTP(w, r)

			return
		}

		recorder := httptest.NewRecorder()
		operator.ServeHTTP(recorder, r)

		if recorder.Code != http.StatusAccepted {
			t.fail("the response to the webhook has status %d: %s", recorder.Code, recorder.Body)
		}

		t.killOperator()
		w.WriteHeader(recorder.Code)
	})
}

// hasCalled returns true if there was a call whose pattern has this last path element.
func (t *trap) hasCalled(lastElement string) bool {
	for _, call := range t.listCalls() {
		if path.Base(call.Pattern) == lastElement {
			return true
		}
	}

	return false
}
