// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kill

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

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
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		call, ok := t.names.ofForge(r)
		if !ok {
			proxy.ServeHTTP(w, r)

			return
		}

		call = t.record(call)
		if t.is(call, Before) {
			t.spring()
			panic(http.ErrAbortHandler)
		}

		if !t.is(call, After) {
			proxy.ServeHTTP(w, r)

			return
		}

		answer := httptest.NewRecorder()
		proxy.ServeHTTP(answer, r)
		t.spring()
		panic(http.ErrAbortHandler)
	}))
	tb.Cleanup(server.Close)

	return server.URL
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
