// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kill

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor/proxmox"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

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

	var first atomic.Bool

	proxy := &httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) },
		// An operator that is dead has hung up.
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPatch {
			proxy.ServeHTTP(w, r)

			return
		}

		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler) // the operator died with the request half sent
		}

		r.Body = io.NopCloser(bytes.NewReader(body))

		call, ok := ofKube(r.Method, r.URL.Path, body)
		if !ok {
			proxy.ServeHTTP(w, r)

			return
		}

		call = t.record(call)
		if t.is(call, Before) {
			t.spring()
			panic(http.ErrAbortHandler)
		}

		call.Nth = 1 // one that was refused, for its copy is old, is made again

		if !t.is(call, After) {
			proxy.ServeHTTP(w, r)

			return
		}

		answer := httptest.NewRecorder()
		proxy.ServeHTTP(answer, r)

		if answer.Code == http.StatusOK && first.CompareAndSwap(false, true) {
			t.spring()
			panic(http.ErrAbortHandler)
		}

		maps.Copy(w.Header(), answer.Header())
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes())
	}))
	tb.Cleanup(server.Close)
	// Watches last for as long as their operator; raze has ended the last one by then.
	tb.Cleanup(server.CloseClientConnections)

	return &rest.Config{Host: server.URL}
}

// addresses sees every address that is ever on record, and tells what must not have been.
type addresses struct {
	server *pve.Server
	done   chan struct{}
	stop   func()

	mu sync.Mutex
	// holders are the uids by address, left those who had it before, had the addresses by uid.
	holders, left, had map[string]string
	broken             map[string]bool
}

// watchAddresses watches until the test's end.
func watchAddresses(tb testing.TB, f *fleet.Fleet) *addresses {
	tb.Helper()

	watcher, err := client.NewWithWatch(f.Env.Config, client.Options{Scheme: f.Env.Scheme})
	if err != nil {
		tb.Fatal(err)
	}

	stream, err := watcher.Watch(tb.Context(), &v1alpha1.MachineClaimList{}, client.InNamespace(f.Namespace))
	if err != nil {
		tb.Fatal(err)
	}

	a := &addresses{
		server: f.PVE, done: make(chan struct{}), stop: stream.Stop,
		holders: map[string]string{}, left: map[string]string{}, had: map[string]string{}, broken: map[string]bool{},
	}

	go func() {
		defer close(a.done)

		for event := range stream.ResultChan() {
			if claim, ok := event.Object.(*v1alpha1.MachineClaim); ok {
				a.note(claim, event.Type == apiwatch.Deleted)
			}
		}
	}()

	tb.Cleanup(func() { a.stop(); <-a.done })

	return a
}

// note compares what is on record for a claim with what was.
func (a *addresses) note(claim *v1alpha1.MachineClaim, gone bool) {
	a.mu.Lock()
	defer a.mu.Unlock()

	uid := string(claim.UID)

	var now []string
	if claim.Status.NetworkInfo != nil && !gone {
		now = claim.Status.NetworkInfo.Addresses
	}

	for address, holder := range a.holders {
		if holder == uid && !slices.Contains(now, address) {
			delete(a.holders, address)
			a.left[address] = uid
		}
	}

	for _, address := range now {
		if holder := a.holders[address]; holder != "" && holder != uid {
			a.broken[fmt.Sprintf("%s was given to claim %s while %s had it", address, uid, holder)] = true
		}

		if before := a.left[address]; before != "" && before != uid && a.runs(before) {
			a.broken[fmt.Sprintf("%s was given to claim %s while the VM of %s was there", address, uid, before)] = true
		}

		a.holders[address] = uid
	}

	if len(now) == 0 {
		return
	}

	text := strings.Join(now, " ")
	if before := a.had[uid]; before != "" && before != text {
		a.broken[fmt.Sprintf("claim %s had %s, and has %s", uid, before, text)] = true
	}

	a.had[uid] = text
}

// runs says whether there is a VM of a claim.
func (a *addresses) runs(uid string) bool {
	state := a.server.Snapshot()

	for _, vm := range state.Made() {
		record, err := proxmox.ParseRecord(vm.Config["description"])
		if err == nil && record.MachineClaim.UID == uid {
			return true
		}
	}

	return false
}

// held is how many addresses are on record.
func (a *addresses) held() int {
	a.mu.Lock()
	defer a.mu.Unlock()

	return len(a.holders)
}

// verdict tells what must not have been: an address that two claims had, or a claim whose
// machine was made without one or changed it, or an address that is not free in the end.
func (a *addresses) verdict(made []string) []string {
	// The claims are gone when this is asked for; the watch may be about to tell it.
	for end := time.Now().Add(patience); a.held() > 0 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}

	a.stop()
	<-a.done

	a.mu.Lock()
	defer a.mu.Unlock()

	out := slices.Sorted(maps.Keys(a.broken))

	for _, uid := range made {
		if a.had[uid] == "" {
			out = append(out, "a machine was made for claim "+uid+", which had no address on record")
		}
	}

	for address, uid := range a.holders {
		out = append(out, fmt.Sprintf("%s is on record for claim %s still", address, uid))
	}

	return out
}
