// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fence_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	clocktest "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/operator/fence"
)

// answer is a transport that returns one status and counts its calls.
type answer struct {
	status, calls int
	err           error
	during        func()
}

func (a *answer) RoundTrip(*http.Request) (*http.Response, error) {
	a.calls++

	if a.during != nil {
		a.during()
	}

	if a.err != nil {
		return nil, a.err
	}

	return &http.Response{StatusCode: a.status, Body: http.NoBody}, nil
}

func call(t *testing.T, through http.RoundTripper, method string) error {
	t.Helper()

	body := &closed{Reader: strings.NewReader("{}")}

	request, err := http.NewRequestWithContext(t.Context(), method, "http://127.0.0.1/", body)
	if err != nil {
		t.Fatal(err)
	}

	response, err := through.RoundTrip(request)
	if response != nil {
		_ = response.Body.Close()
	} else if strings.HasPrefix(err.Error(), "the leader's lease") && !body.is {
		t.Error("the body of a refused call stays open")
	}

	return err
}

type closed struct {
	io.Reader

	is bool
}

func (c *closed) Close() error {
	c.is = true

	return nil
}

func TestWritesAreRefusedWithoutTheLease(t *testing.T) {
	t.Parallel()

	clock := clocktest.NewFakePassiveClock(time.Unix(1000, 0))
	f := fence.New(clock, 15*time.Second)
	server, lease := &answer{status: http.StatusOK}, &answer{status: http.StatusOK}
	writes, election := f.GuardWrites(server), f.TrackRenewals(lease)

	pass := func(d time.Duration) { clock.SetTime(clock.Now().Add(d)) }

	for _, step := range []struct {
		name    string
		do      func()
		refused bool
	}{
		{name: "never elected", do: func() { pass(time.Hour) }},
		{name: "somebody else has it", do: func() { _ = call(t, election, http.MethodGet); pass(time.Hour) }},
		{name: "elected", do: func() { _ = call(t, election, http.MethodPost); pass(14 * time.Second) }},
		{name: "run out", do: func() { pass(time.Second) }, refused: true},
		{name: "looked at", do: func() { _ = call(t, election, http.MethodGet) }, refused: true},
		{name: "not renewed", do: func() { lease.status = http.StatusConflict; _ = call(t, election, http.MethodPut) }, refused: true},
		{name: "not reached", do: func() { lease.err = errors.ErrUnsupported; _ = call(t, election, http.MethodPut) }, refused: true},
		{name: "renewed", do: func() { lease.err, lease.status = nil, http.StatusOK; _ = call(t, election, http.MethodPut) }},
		{name: "renewed slowly", do: func() {
			pass(10 * time.Second)
			lease.during = func() { pass(10 * time.Second) }
			_ = call(t, election, http.MethodPut)
			lease.during = nil
			pass(5 * time.Second)
		}, refused: true},
	} {
		step.do()

		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
			before := server.calls
			err := call(t, writes, method)

			if refused := err != nil && server.calls == before; refused != step.refused {
				t.Errorf("%s: %s: %v", step.name, method, err)
			}
		}

		if err := call(t, writes, http.MethodGet); err != nil {
			t.Errorf("%s: what only reads is refused: %v", step.name, err)
		}
	}
}

// The monotonic clock stops while a machine is paused. The wall clock shows the elapsed time.
func TestPausedMachine(t *testing.T) {
	t.Parallel()

	now := time.Now()
	clock := clocktest.NewFakePassiveClock(now)
	f := fence.New(clock, 15*time.Second)

	if err := call(t, f.TrackRenewals(&answer{status: http.StatusOK}), http.MethodPut); err != nil {
		t.Fatal(err)
	}

	// These times have no monotonic clock reading (package time).
	clock.SetTime(now.Round(0).Add(time.Minute))

	if err := f.CheckLease(); err == nil || !strings.Contains(err.Error(), "renewed 1m0s ago and is valid for 15s") {
		t.Errorf("after a minute: %v", err)
	}

	// Setting the wall clock back does not extend the lease.
	clock.SetTime(now.Add(time.Minute))

	if err := f.CheckLease(); err == nil {
		t.Error("the lease never expires")
	}
}
