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

// lateBy is how long after the next operator's start a late call takes effect, if that
// operator does not make the same call before.
const lateBy = time.Second

// trap sees every call of a life, and springs at its boundary. Without one it only
// records.
type trap struct {
	names names
	at    *Boundary
	// kill ends the operator and returns when it has ended.
	kill func()
	fail func(format string, args ...any)
	// sprung is closed when the operator is dead, over when the call is (where that is
	// waited for), restarted by whoever has started the next operator.
	sprung, over, restarted chan struct{}

	mu    sync.Mutex
	calls []Call
	seen  map[Call]int
	held  map[int64]Call
	// unfault takes away the fault that a call was to die of, if it did not get that far.
	unfault func()
}

func newTrap(at *Boundary, kill func(), fail func(string, ...any)) *trap {
	return &trap{
		names: newNames(), at: at, kill: kill, fail: fail,
		sprung: make(chan struct{}), over: make(chan struct{}), restarted: make(chan struct{}),
		seen: map[Call]int{}, held: map[int64]Call{},
	}
}

// record counts a call and says which one it is.
func (t *trap) record(call Call) Call {
	t.mu.Lock()
	defer t.mu.Unlock()

	t.seen[call]++
	call.Nth = t.seen[call]
	t.calls = append(t.calls, call)

	return call
}

// all are the calls so far.
func (t *trap) all() []Call {
	t.mu.Lock()
	defer t.mu.Unlock()

	return append([]Call(nil), t.calls...)
}

// is says whether the operator dies here.
func (t *trap) is(call Call, moments ...Moment) bool {
	if t.at == nil || call != t.at.Call {
		return false
	}

	return slices.Contains(moments, t.at.Moment)
}

// spring kills the operator.
func (t *trap) spring() {
	t.kill()
	close(t.sprung)
}

// onCall sees the hypervisor's calls.
func (t *trap) onCall(server *pve.Server) func(pve.Call) {
	return func(c pve.Call) {
		call, ok := t.names.ofPVE(c)
		if !ok {
			return
		}

		if c.Phase == pve.After {
			t.mu.Lock()
			call, ok = t.held[c.Seq]
			t.mu.Unlock()

			switch {
			case !ok:
			case t.is(call, After):
				t.spring()
			case t.is(call, Before):
				t.unfault()
				close(t.over)
			case t.is(call, Late):
				close(t.over)
			}

			return
		}

		call = t.record(call)
		if !t.is(call, Before, After, Late) {
			return
		}

		t.mu.Lock()
		t.held[c.Seq] = call
		t.mu.Unlock()

		switch t.at.Moment {
		case Before:
			// As if it had not left the operator: whoever answers does nothing.
			t.unfault = server.AddFault(pve.Fault{Kind: pve.FaultError, Method: c.Method, Path: c.Path, Count: 1})
			t.spring()
		case Late:
			t.spring()
			<-t.restarted
			t.awaitRival(call)
		case After:
		}
	}
}

// awaitRival waits until the next operator makes the same call, where it does.
func (t *trap) awaitRival(call Call) {
	kind := call
	kind.Nth = 0
	deadline := time.Now().Add(lateBy)

	for time.Now().Before(deadline) {
		t.mu.Lock()
		rival := t.seen[kind] > call.Nth
		t.mu.Unlock()

		if rival {
			return
		}

		time.Sleep(lateBy / 100)
	}
}

// forge stands before the CI platform and sees what it is asked for.
func (t *trap) forge(tb testing.TB, f *fleet.Fleet) string {
	tb.Helper()

	target, err := url.Parse(f.GitHub.URL)
	if err != nil {
		tb.Fatal(err)
	}

	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = r.In.Host
	}}

	return t.stand(tb, proxy, t.names.ofForge)
}

// kube stands before the API server and sees what the operator writes there of addresses. It
// gives the way to it.
func (t *trap) kube(tb testing.TB, f *fleet.Fleet) *rest.Config {
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
		// An operator that is dead has hung up.
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	return &rest.Config{Host: t.stand(tb, proxy, ofKube)}
}

// stand stands before a server and sees the calls of a life.
func (t *trap) stand(tb testing.TB, server http.Handler, of func(*http.Request) (Call, bool)) string {
	tb.Helper()

	var sprung atomic.Bool

	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		call, ok := of(r)
		if !ok {
			server.ServeHTTP(w, r)

			return
		}

		call = t.record(call)
		if t.is(call, Before) {
			t.spring()
			panic(http.ErrAbortHandler)
		}

		if call.Side == sideKube {
			call.Nth = 1 // one that was refused, for its copy is old, is made again
		}

		if !t.is(call, After) {
			server.ServeHTTP(w, r)

			return
		}

		answer := httptest.NewRecorder()
		server.ServeHTTP(answer, r)

		if (call.Side != sideKube || answer.Code == http.StatusOK) && sprung.CompareAndSwap(false, true) {
			t.spring()
			panic(http.ErrAbortHandler)
		}

		maps.Copy(w.Header(), answer.Header())
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes())
	}))
	tb.Cleanup(front.Close)
	// Watches last for as long as their operator; raze has ended the last one by then.
	tb.Cleanup(front.CloseClientConnections)

	return front.URL
}

// webhooks stands before the operator and sees the webhook that brings the job. What
// was answered with 202 is the operator's to remember.
func (t *trap) webhooks(operator http.Handler) http.Handler {
	var first sync.Once

	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var (
			call Call
			ours bool
		)

		if strings.HasPrefix(r.URL.Path, "/webhooks/") {
			first.Do(func() { call, ours = t.record(Call{Side: sideWebhook, Method: r.Method, Pattern: r.URL.Path}), true })
		}

		if !ours || !t.is(call, After) {
			operator.ServeHTTP(w, r)

			return
		}

		answer := httptest.NewRecorder()
		operator.ServeHTTP(answer, r)

		if answer.Code != http.StatusAccepted {
			t.fail("the webhook was answered with %d: %s", answer.Code, answer.Body)
		}

		t.spring()
		w.WriteHeader(answer.Code)
	})
}

// has tells whether a call whose path ends so was made.
func (t *trap) has(last string) bool {
	for _, call := range t.all() {
		if path.Base(call.Pattern) == last {
			return true
		}
	}

	return false
}
