// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
)

// killMoment is when the operator is killed: before the API server gets a write, or after it has handled the write
// but before the operator gets the response.
type killMoment string

const (
	before killMoment = "before"
	after  killMoment = "after"
)

// trap is a proxy for the API server that kills the operator once at each kind of write.
type trap struct {
	w      *fixture
	moment killMoment
	// sprung receives each write at which the operator was killed.
	sprung chan string

	mu sync.Mutex
	// seen are the writes at which the operator was killed, in order.
	seen []string
	// disarmed is true if the trap does not kill any more.
	disarmed bool
}

func newTrap(w *fixture, moment killMoment) *trap {
	return &trap{w: w, moment: moment, sprung: make(chan string, 1)}
}

// startProxy starts the proxy, and returns the operator's client configuration.
func (t *trap) startProxy(tb testing.TB) *rest.Config {
	tb.Helper()

	target, err := url.Parse(env.Config.Host)
	if err != nil {
		tb.Fatal(err)
	}

	transport, err := rest.TransportFor(env.ServiceAccount(tb, system, account))
	if err != nil {
		tb.Fatal(err)
	}

	proxy := &httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) },
		// A killed operator has closed the connection.
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { t.serve(proxy, w, r) }))
	tb.Cleanup(server.Close)
	// Closing the connections of watches needs the operator to be killed, because it would reconnect.
	tb.Cleanup(server.CloseClientConnections)
	tb.Cleanup(t.w.kill)

	return &rest.Config{Host: server.URL}
}

func (t *trap) serve(proxy http.Handler, w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		proxy.ServeHTTP(w, r)

		return
	}

	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler) // the operator was killed while it sent the request
	}

	r.Body = io.NopCloser(bytes.NewReader(body))
	write := t.writeName(r, body)

	if write == "" || !t.shouldKill(write) {
		proxy.ServeHTTP(w, r)

		return
	}

	if t.moment == after {
		response := httptest.NewRecorder()
		proxy.ServeHTTP(response, r)

		// The operator repeats a write that was rejected because of a conflict.
		if response.Code >= http.StatusMultipleChoices {
			t.rearm(write)
			maps.Copy(w.Header(), response.Header())
			w.WriteHeader(response.Code)
			_, _ = w.Write(response.Body.Bytes())

			return
		}
	}

	t.w.kill()
	t.sprung <- write

	panic(http.ErrAbortHandler)
}

// shouldKill returns true if the operator has to be killed at this write: once for each kind, one at a time.
func (t *trap) shouldKill(write string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()

	if t.disarmed || slices.Contains(t.seen, write) || len(t.sprung) > 0 {
		return false
	}

	t.seen = append(t.seen, write)

	return true
}

// rearm makes the trap kill at this write again.
func (t *trap) rearm(write string) {
	t.mu.Lock()
	defer t.mu.Unlock()

	t.seen = slices.DeleteFunc(t.seen, func(s string) bool { return s == write })
}

// disarm stops the trap from killing, and returns the writes at which it has killed the operator.
func (t *trap) disarm() []string {
	t.mu.Lock()
	defer t.mu.Unlock()

	t.disarmed = true

	return slices.Clone(t.seen)
}

// writeName returns the kind of a write: its method and object, and for bridges the phase and reason that it
// writes. It returns "" for events and other writes that are not state.
func (t *trap) writeName(r *http.Request, body []byte) string {
	path := strings.NewReplacer(t.w.namespace, "NS", t.w.dpf, "DPF").Replace(r.URL.Path)
	if strings.Contains(path, "/events") || strings.Contains(path, "/leases") || strings.Contains(path, "/authentication") {
		return ""
	}

	parts := strings.Split(strings.Trim(path, "/"), "/")
	name := r.Method + " " + strings.Join(parts[min(2, len(parts)):], "/")

	var written struct {
		Metadata metav1.ObjectMeta           `json:"metadata"`
		Status   v1alpha1.DPFHCPBridgeStatus `json:"status"`
	}
	if json.Unmarshal(body, &written) != nil {
		// Kubernetes' own kinds are not written as JSON, but names are readable in their encoding.
		return strings.TrimSpace(name + " " + string(regexp.MustCompile(`-hcp-[a-z-]+`).Find(body)))
	}

	switch {
	case r.Method == http.MethodPost:
		return name + " " + strings.NewReplacer(t.w.namespace, "NS", t.w.dpf, "DPF").Replace(written.Metadata.Name)
	case !strings.Contains(path, "/dpfhcpbridges/"):
		return name
	}

	ready := meta.FindStatusCondition(written.Status.Conditions, v1alpha1.ConditionReady)
	if ready == nil {
		return name
	}

	return strings.Join(strings.Fields(name+" "+string(written.Status.Phase)+" "+ready.Reason), " ")
}
