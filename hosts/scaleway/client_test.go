// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package scaleway_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	testclock "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/hosts/scaleway"
	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/log"
	sim "github.com/hyperfleet/hyperfleet/sim/scaleway"
	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

type fixture struct {
	sim    *sim.Simulator
	clock  *testclock.FakeClock
	client *scaleway.Client
}

func newFixture(t *testing.T, opts sim.Options) fixture {
	t.Helper()

	clk := testclock.NewFakeClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	opts.Clock = clk
	w := fixture{sim: sim.New(opts), clock: clk}

	server := httptest.NewServer(w.sim)
	t.Cleanup(server.Close)
	t.Cleanup(func() {
		if v := w.sim.Violations(); len(v) > 0 {
			t.Errorf("a call violated Scaleway's contract: %v", v)
		}
	})

	client, err := scaleway.New(newConfig(server.URL))
	must.Do(t, err)

	w.client = client

	return w
}

func newConfig(endpoint string) scaleway.Config {
	return scaleway.Config{
		AccessKey: sim.DefaultAccessKey, SecretKey: log.NewSecret(sim.DefaultSecretKey), ProjectID: sim.DefaultProject,
		Zone: "fr-par-1", Endpoint: endpoint, Timeout: 20 * time.Second, Clock: timing.InstantClock{},
		Network: bounds.SharedTransport(),
	}
}

func TestServerLifecycle(t *testing.T) {
	t.Parallel()

	w := newFixture(t, sim.Options{})
	ctx := t.Context()

	must.Do(t, w.client.EnsureKey(ctx, "fleet", "ssh-ed25519 AAAA comment"))

	if err := w.client.EnsureKey(ctx, "fleet", "ssh-ed25519 AAAA other comment\n"); err != nil || len(w.sim.Keys()) != 1 {
		t.Errorf("%v, %d keys, want one", err, len(w.sim.Keys()))
	}

	os, err := w.client.FindOS(ctx, "M4-S", "macos-sonoma-14.6")
	must.Do(t, err)

	ordered, err := w.client.Order(ctx, scaleway.Order{Name: "mac-1", Type: "M4-S", OSID: os})
	if err != nil || ordered.State != scaleway.Working || ordered.IP != "" {
		t.Fatalf("order: %v %+v", err, ordered)
	}

	found, ok, err := w.client.Find(ctx, "mac-1")
	if err != nil || !ok || found.ID != ordered.ID {
		t.Errorf("find: %v %v %+v", err, ok, found)
	}

	w.clock.Step(10 * time.Minute)

	got, err := w.client.Get(ctx, ordered.ID)
	must.Do(t, err)

	if got.State != scaleway.Usable || got.IP == "" || got.SSHUser != "m1" || got.OS != "macos-sonoma-14.6" ||
		got.Password.IsEmpty() || !got.DeletableAt.Equal(got.Created.Add(24*time.Hour)) {
		t.Errorf("delivered: %+v", got)
	}

	if strings.Contains(fmt.Sprintf("%+v", got), got.Password.Reveal()) {
		t.Error("the printed server contains the password")
	}

	must.Do(t, w.client.Reboot(ctx, got.ID))

	if err := w.client.Wipe(ctx, got.ID); !scaleway.IsKind(err, scaleway.Busy) {
		t.Errorf("reinstall of a restarting server: %v, want Busy", err)
	}

	w.clock.Step(2 * time.Minute)

	must.Do(t, w.client.Wipe(ctx, got.ID))

	checkEnd(t, w, got)
}

func checkEnd(t *testing.T, w fixture, got scaleway.Server) {
	t.Helper()

	ctx := t.Context()

	if err := w.client.Delete(ctx, got.ID); !scaleway.IsKind(err, scaleway.Rejected) || !strings.Contains(err.Error(), "cannot be deleted before") {
		t.Errorf("delete within the lease: %v, want Rejected with the time", err)
	}

	must.Do(t, w.client.ScheduleDeletion(ctx, got.ID))

	if _, ok, err := w.client.Find(ctx, "mac-1"); ok || err != nil {
		t.Errorf("found a server that is being deleted: %v", err)
	}

	w.clock.Step(24 * time.Hour)

	if _, err := w.client.Get(ctx, got.ID); !scaleway.IsKind(err, scaleway.NotFound) {
		t.Errorf("get after deletion: %v, want NotFound", err)
	}

	if err := w.client.Delete(ctx, got.ID); !scaleway.IsKind(err, scaleway.NotFound) {
		t.Errorf("delete after deletion: %v, want NotFound", err)
	}
}

func TestHardware(t *testing.T) {
	t.Parallel()

	w := newFixture(t, sim.Options{})

	got, err := w.client.Hardware(t.Context(), "M4-S")
	must.Do(t, err)

	if diff := cmp.Diff(scaleway.Hardware{Cores: 10, MemoryMB: 16384}, got); diff != "" {
		t.Error(diff)
	}

	if _, err := w.client.Hardware(t.Context(), "M99"); !scaleway.IsKind(err, scaleway.NotFound) {
		t.Errorf("%v, want NotFound", err)
	}

	if _, err := w.client.FindOS(t.Context(), "M4-S", "macos-sonoma"); !scaleway.IsKind(err, scaleway.Rejected) {
		t.Errorf("a prefix of a name: %v", err)
	}
}

// There are more servers than fit on one page.
func TestListReadsAllPages(t *testing.T) {
	t.Parallel()

	w := newFixture(t, sim.Options{})
	for i := range 230 {
		w.sim.AddServer(fmt.Sprint("pool-", i), "M4-S")
	}

	list, err := w.client.List(t.Context())
	must.Do(t, err)

	seen := map[string]bool{}
	for _, s := range list {
		seen[s.ID] = true
	}

	if len(seen) != 230 {
		t.Errorf("%d servers, want 230", len(seen))
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()

	tests := map[string]struct {
		fault   sim.Fault
		kind    scaleway.Kind
		class   errclass.Class
		decided bool
	}{
		"out of stock":           {sim.Fault{Status: 503, Type: "out_of_stock"}, scaleway.OutOfStock, errclass.Resource, true},
		"quota":                  {sim.Fault{Status: 403, Type: "quotas_exceeded"}, scaleway.Quota, errclass.Resource, true},
		"transient state":        {sim.Fault{Status: 409, Type: "transient_state"}, scaleway.Busy, errclass.Resource, true},
		"locked":                 {sim.Fault{Status: 423, Type: "locked"}, scaleway.Busy, errclass.Resource, true},
		"too many requests":      {sim.Fault{Status: 429}, scaleway.Busy, errclass.Resource, true},
		"no permission":          {sim.Fault{Status: 403, Type: "permissions_denied"}, scaleway.Denied, errclass.Configuration, true},
		"no such key":            {sim.Fault{Status: 401, Type: "denied_authentication"}, scaleway.Denied, errclass.Configuration, true},
		"bad argument":           {sim.Fault{Status: 400, Type: "invalid_arguments"}, scaleway.Rejected, errclass.Configuration, true},
		"bad request":            {sim.Fault{Status: 400}, scaleway.Rejected, errclass.Configuration, true},
		"outage":                 {sim.Fault{Status: 502}, scaleway.Unavailable, errclass.Transient, false},
		"outage after the order": {sim.Fault{Status: 504, RunsCall: true}, scaleway.Unavailable, errclass.Transient, false},
	}

	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			w := newFixture(t, sim.Options{})
			tc.fault.Method = http.MethodPost
			w.sim.Inject(tc.fault)

			_, err := w.client.Order(t.Context(), scaleway.Order{Name: "mac-1", Type: "M4-S"})
			if !scaleway.IsKind(err, tc.kind) || errclass.ClassOf(err) != tc.class || scaleway.IsOrderRejected(err) != tc.decided {
				t.Errorf("%v: want %s, %s, decided %v", err, tc.kind, tc.class, tc.decided)
			}

			if n := w.sim.Calls()["POST /apple-silicon/v1alpha1/zones/fr-par-1/servers"]; n != 1 {
				t.Errorf("%d orders, want one without retries", n)
			}

			if len(w.sim.Servers()) == 1 != tc.fault.RunsCall {
				t.Errorf("%d servers", len(w.sim.Servers()))
			}
		})
	}
}

func TestOutageOfReadsPasses(t *testing.T) {
	t.Parallel()

	w := newFixture(t, sim.Options{})
	w.sim.AddServer("mac-1", "M4-S")
	w.sim.Inject(sim.Fault{Status: 502, Times: 2})

	if list, err := w.client.List(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("%v, %d servers, want one after two outages", err, len(list))
	}

	w.sim.Inject(sim.Fault{Status: 502, Times: 3})

	if _, err := w.client.List(t.Context()); !scaleway.IsKind(err, scaleway.Unavailable) {
		t.Errorf("%v, want Unavailable after three", err)
	}
}

func TestSlowResponses(t *testing.T) {
	t.Parallel()

	w := newFixture(t, sim.Options{})
	w.sim.Inject(sim.Fault{Delay: time.Hour})

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()

	if _, err := w.client.List(ctx); !scaleway.IsKind(err, scaleway.Unavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want Unavailable with the deadline", err)
	}
}

func TestDisabledKeyIsRejected(t *testing.T) {
	t.Parallel()

	w := newFixture(t, sim.Options{})
	w.sim.AddKey(sim.Key{Name: "old", PublicKey: "ssh-ed25519 AAAA", Disabled: true})

	if err := w.client.EnsureKey(t.Context(), "fleet", "ssh-ed25519 AAAA"); !scaleway.IsKind(err, scaleway.Rejected) {
		t.Errorf("%v, want Rejected", err)
	}
}

func TestInvalidSettingsErrorHasNoSecret(t *testing.T) {
	t.Parallel()

	const secret = "not-a-uuid-but-secret"

	cfg := newConfig("https://user@host/path")
	cfg.AccessKey, cfg.SecretKey, cfg.ProjectID, cfg.Zone = "SCW", log.NewSecret(secret), "mine", "paris"

	_, err := scaleway.New(cfg)
	if !scaleway.IsKind(err, scaleway.Denied) || strings.Contains(err.Error(), secret) {
		t.Fatalf("%v", err)
	}

	for _, endpoint := range []string{"http://api.example.com", "http://169.254.169.254"} {
		if _, err := scaleway.New(newConfig(endpoint)); !scaleway.IsKind(err, scaleway.Denied) {
			t.Errorf("%s is called without TLS: %v", endpoint, err)
		}
	}

	for _, word := range []string{"access key", "secret key", "project", "zone", "endpoint"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%v: does not contain %q", err, word)
		}
	}
}

func TestSecretKeyIsNotRepeated(t *testing.T) {
	t.Parallel()

	echo := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprintf(w, `{"message":"bad token %s"}`, r.Header.Get("X-Auth-Token"))
	}))
	defer echo.Close()

	client, err := scaleway.New(newConfig(echo.URL))
	must.Do(t, err)

	_, err = client.List(t.Context())
	if err == nil || strings.Contains(err.Error(), sim.DefaultSecretKey) || !strings.Contains(err.Error(), log.Redacted) {
		t.Errorf("%v: want the key redacted", err)
	}
}

func TestOperationHasNoIDs(t *testing.T) {
	t.Parallel()

	req := httptest.NewRequest(http.MethodPost,
		"/apple-silicon/v1alpha1/zones/fr-par-1/servers/105494bd-0d54-4f0c-9c0d-3a2b1c0d9e8f/reboot?x=y", http.NoBody)
	if got, want := scaleway.Operation(req), "POST /apple-silicon/v1alpha1/zones/fr-par-1/servers/ID/reboot"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
