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

// moments are when the operator dies, seen from a write: nobody ever got it, or it was done
// and nobody heard of it.
type killMoment string

const (
	before killMoment = "before"
	after  killMoment = "after"
)

// trap stands before the API server, sees what the operator writes, and kills it once at
// each kind of write.
type trap struct {
	w      *world
	moment killMoment
	// sprung tells the write that the operator has died of.
	sprung chan string

	mu sync.Mutex
	// seen are the writes that it has died of, in order.
	seen []string
	// disarmed traps let all pass.
	disarmed bool
}

func newTrap(w *world, moment killMoment) *trap {
	return &trap{w: w, moment: moment, sprung: make(chan string, 1)}
}

// way is the operator's way to the API server.
func (t *trap) way(tb testing.TB) *rest.Config {
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
		// An operator that is dead has hung up.
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { t.serve(proxy, w, r) }))
	tb.Cleanup(server.Close)
	// Watches last for as long as their operator, which would begin them again.
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
		panic(http.ErrAbortHandler) // the operator died with the request half sent
	}

	r.Body = io.NopCloser(bytes.NewReader(body))
	write := t.name(r, body)

	if write == "" || !t.arms(write) {
		proxy.ServeHTTP(w, r)

		return
	}

	if t.moment == after {
		answer := httptest.NewRecorder()
		proxy.ServeHTTP(answer, r)

		// What was refused, for its copy is old, is made again.
		if answer.Code >= http.StatusMultipleChoices {
			t.rearm(write)
			maps.Copy(w.Header(), answer.Header())
			w.WriteHeader(answer.Code)
			_, _ = w.Write(answer.Body.Bytes())

			return
		}
	}

	t.w.kill()
	t.sprung <- write

	panic(http.ErrAbortHandler)
}

// arms says whether the operator is to die of a write: of each kind once, one at a time.
func (t *trap) arms(write string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()

	if t.disarmed || slices.Contains(t.seen, write) || len(t.sprung) > 0 {
		return false
	}

	t.seen = append(t.seen, write)

	return true
}

func (t *trap) rearm(write string) {
	t.mu.Lock()
	defer t.mu.Unlock()

	t.seen = slices.DeleteFunc(t.seen, func(s string) bool { return s == write })
}

// disarm gives the writes that the operator has died of.
func (t *trap) disarm() []string {
	t.mu.Lock()
	defer t.mu.Unlock()

	t.disarmed = true

	return slices.Clone(t.seen)
}

// name tells kinds of writes apart: by method and object, and those of a bridge by what they
// say. Events are nobody's state.
func (t *trap) name(r *http.Request, body []byte) string {
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
		// Kubernetes' own kinds are not written in JSON. Our names are in there as they are.
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
