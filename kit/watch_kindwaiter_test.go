// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kit_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/hyperfleet/hyperfleet/kit/watch"
)

// startDiscovery simulates the discovery of an API server that first does not serve a group, then serves one
// of its two kinds, and then both. One response in between is an error.
func startDiscovery(t *testing.T, requests *atomic.Int32) *httptest.Server {
	t.Helper()

	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/apis/kubevirt.io/v1" {
			t.Errorf("request for %s", r.URL.Path)
		}

		w.Header().Set("Content-Type", "application/json")

		n := requests.Add(1) - 1
		kinds := []metav1.APIResource{{Name: "virtualmachines", Kind: "VirtualMachine"}}

		switch looks := n / 2; looks { // each check sends one request per kind
		case 0:
			w.WriteHeader(http.StatusNotFound)
			_ = json.NewEncoder(w).Encode(metav1.Status{
				TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
				Status:   metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound,
			})

			return
		case 1:
		default:
			kinds = append(kinds, metav1.APIResource{Name: "virtualmachineinstances", Kind: "VirtualMachineInstance"})
		}

		_ = json.NewEncoder(w).Encode(metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "kubevirt.io/v1", APIResources: kinds,
		})
	}))
	t.Cleanup(server.Close)

	return server
}

// recordingManager is a manager that records the runnables that are added to it.
type recordingManager struct {
	ctrl.Manager

	host  string
	added []manager.Runnable
}

func (m *recordingManager) GetConfig() *rest.Config { return &rest.Config{Host: m.host} }

func (m *recordingManager) Add(runnable manager.Runnable) error {
	m.added = append(m.added, runnable)

	return nil
}

func TestKindWaiter(t *testing.T) {
	t.Parallel()

	var (
		asked  atomic.Int32
		opened int
		text   bytes.Buffer
	)

	group := schema.GroupVersion{Group: "kubevirt.io", Version: "v1"}
	errOpen := errors.New("the end")
	waiter := &watch.KindWaiter{
		Area:    "machines",
		Kinds:   []schema.GroupVersionKind{group.WithKind("VirtualMachine"), group.WithKind("VirtualMachineInstance")},
		Manager: &recordingManager{host: startDiscovery(t, &asked).URL}, Clock: clock.RealClock{}, Interval: time.Millisecond,
		Log: slog.New(slog.NewTextHandler(&text, nil)),
		SetupWithManager: func(context.Context, ctrl.Manager) error {
			opened++

			return errOpen
		},
	}

	if err := waiter.Start(t.Context()); !errors.Is(err, errOpen) {
		t.Errorf("want the error of opening, got %v", err)
	}

	if opened != 1 {
		t.Errorf("opened %d times", opened)
	}

	if n := strings.Count(text.String(), "area is off"); n != 1 {
		t.Errorf("the log says %d times that the area is off:\n%s", n, text.String())
	}

	for _, want := range []string{"VirtualMachine.kubevirt.io/v1, VirtualMachineInstance.kubevirt.io/v1", "area starts"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, text.String())
		}
	}
}

// A running manager starts added runnables at once, so the waiter adds none before the setup is complete.
func TestKindWaiterStartsNothingEarly(t *testing.T) {
	t.Parallel()

	for name, open := range map[string]error{"well": nil, "badly": errors.New("the end")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var requests atomic.Int32

			requests.Store(4) // all kinds are served

			mgr := &recordingManager{host: startDiscovery(t, &requests).URL}
			waiter := &watch.KindWaiter{
				Kinds:   []schema.GroupVersionKind{{Group: "kubevirt.io", Version: "v1", Kind: "VirtualMachine"}},
				Manager: mgr, Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler),
				SetupWithManager: func(_ context.Context, given ctrl.Manager) error {
					for range 2 {
						if err := given.Add(manager.RunnableFunc(func(context.Context) error { return nil })); err != nil {
							t.Error(err)
						}
					}

					if len(mgr.added) != 0 {
						t.Error("a controller starts during the setup")
					}

					return open
				},
			}

			if err := waiter.Start(t.Context()); !errors.Is(err, open) {
				t.Errorf("got %v", err)
			}

			if want := map[bool]int{true: 2}[open == nil]; len(mgr.added) != want {
				t.Errorf("%d runnables are added, want %d", len(mgr.added), want)
			}
		})
	}
}

func TestKindWaiterEndsWithItsProcess(t *testing.T) {
	t.Parallel()

	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	waiter := &watch.KindWaiter{
		Kinds:   []schema.GroupVersionKind{{Group: "kubevirt.io", Version: "v1", Kind: "VirtualMachine"}},
		Manager: &recordingManager{host: "http://127.0.0.1:1"}, Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler),
		SetupWithManager: func(context.Context, ctrl.Manager) error { return errors.New("it opened") },
	}

	if err := waiter.Start(ctx); err != nil {
		t.Errorf("got %v", err)
	}
}

// A waiter ends at once while the API server does not respond.
func TestKindWaiterEndsWhileItChecks(t *testing.T) {
	t.Parallel()

	end, requested := make(chan struct{}), make(chan struct{}, 1)
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		requested <- struct{}{}

		<-end
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(end) })

	waiter := &watch.KindWaiter{
		Area: "machines", Kinds: []schema.GroupVersionKind{{Group: "kubevirt.io", Version: "v1", Kind: "VirtualMachine"}},
		Manager: &recordingManager{host: server.URL}, Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler),
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)

	go func() { ended <- waiter.Start(ctx) }()

	<-requested
	cancel()

	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(8 * time.Second): // the operator's timeout
		t.Error("the waiter does not end")
	}
}

// startingManager is a manager that accepts no controllers while it starts.
type startingManager struct {
	recordingManager

	isAdding chan struct{}
	started  chan struct{}
}

func (m *startingManager) Add(manager.Runnable) error {
	close(m.isAdding)
	<-m.started

	return nil
}

// A KindWaiter ends at once while its manager is still starting, because the manager waits for it.
func TestKindWaiterEndsWhileItsManagerStarts(t *testing.T) {
	t.Parallel()

	server := startDiscovery(t, new(atomic.Int32))
	starting := &startingManager{
		recordingManager: recordingManager{host: server.URL}, isAdding: make(chan struct{}), started: make(chan struct{}),
	}
	t.Cleanup(func() { close(starting.started) })

	waiter := &watch.KindWaiter{
		Area: "machines", Manager: starting, Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler),
		SetupWithManager: func(_ context.Context, mgr ctrl.Manager) error {
			return mgr.Add(manager.RunnableFunc(func(context.Context) error { return nil }))
		},
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)

	go func() { ended <- waiter.Start(ctx) }()

	<-starting.isAdding
	cancel()

	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(8 * time.Second): // the operator's timeout
		t.Error("the waiter does not end")
	}
}
