// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package lease_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/test/lease"
)

type place struct{ Name string }

// startServer serves leases of one server. given receives the requests, and back a value for each released lease.
func startServer(t *testing.T) (given chan lease.Request, back chan struct{}) {
	t.Helper()

	given, back = make(chan lease.Request, 1), make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(t.Context())

	socket, wait, err := lease.Serve(ctx, t.TempDir(), map[string]lease.Provider{
		"thing": func(_ context.Context, request lease.Request) (any, func(), error) {
			given <- request

			return place{Name: "here"}, func() { back <- struct{}{} }, nil
		},
		"broken": func(context.Context, lease.Request) (any, func(), error) { return nil, nil, errors.New("it is broken") },
	})
	if err != nil {
		cancel()
		t.Fatal(err)
	}

	t.Cleanup(func() {
		cancel()
		wait()
	})
	t.Setenv(lease.EnvSocket, socket)

	return given, back
}

// TestLeaseEndsWithConnection checks that a lease lasts until its connection is closed.
func TestLeaseEndsWithConnection(t *testing.T) {
	given, back := startServer(t)

	var got place

	held, err := lease.Acquire("thing", &got, "large")
	if err != nil || got.Name != "here" {
		t.Fatalf("Acquire = %+v, %v", got, err)
	}

	if request := <-given; request.Dir == "" || len(request.Options) != 1 || request.Options[0] != "large" {
		t.Errorf("request = %+v", request)
	}

	select {
	case <-back:
		t.Fatal("the lease ended before its release")
	default:
	}

	if err := held.Release(); err != nil {
		t.Fatal(err)
	}

	<-back
}

// TestRejectedLeases checks the errors of leases that cannot be acquired.
func TestRejectedLeases(t *testing.T) {
	startServer(t)

	for kind, want := range map[string]string{"broken": "it is broken", "other": `unknown kind of server: "other"`} {
		if _, err := lease.Acquire(kind, &place{}); !errors.Is(err, lease.ErrRefused) || !strings.Contains(err.Error(), want) {
			t.Errorf("Acquire(%s) = %v, want %q", kind, err, want)
		}
	}
}

// TestNoLeaseServer checks that there is no lease without a socket, and an error if nothing serves the socket.
func TestNoLeaseServer(t *testing.T) {
	t.Setenv(lease.EnvSocket, "")

	held, err := lease.Acquire("thing", &place{})
	if held != nil || err != nil {
		t.Errorf("Acquire = %v, %v, want nil", held, err)
	}

	if err := held.Release(); err != nil {
		t.Error(err)
	}

	t.Setenv(lease.EnvSocket, t.TempDir()+"/none")

	if _, err := lease.Acquire("thing", &place{}); err == nil {
		t.Error("Acquire succeeded without a server")
	}
}
