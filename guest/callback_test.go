// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest_test

import (
	"context"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	api "github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

// reply is one response of the operator's endpoint for credentials.
type reply struct {
	status int
	body   string
	after  string // Retry-After
}

// TestCredentialByCallback has one case for each result of a request for the credential.
func TestCredentialByCallback(t *testing.T) {
	t.Parallel()

	const credential = `{"jit_config":"` + jitBlob + `"}`

	given, away := reply{status: 200, body: credential}, reply{status: 503, body: `{"message":"try again"}`}
	refused := func(status int) reply {
		return reply{status: status, body: `{"reason":"CredentialRefused","message":"no ` + claimCode + ` here"}`}
	}

	for name, tc := range map[string]struct {
		replies []reply // the last one repeats
		pauses  []int   // seconds
		change  func(*api.Config)
		reason  string
		message string
		calls   int32
	}{
		"at once":                           {replies: []reply{given}, reason: api.ReasonJobDone, message: "Succeeded", calls: 1},
		"after the operator is unavailable": {replies: []reply{away, {status: 502, body: "<html>"}, given}, pauses: []int{1, 2}, reason: api.ReasonJobDone, calls: 3},
		"after the requested time":          {replies: []reply{{status: 429, after: "17"}, given}, pauses: []int{17}, reason: api.ReasonJobDone, calls: 2},
		"after an excessive pause":          {replies: []reply{{status: 429, after: "99999999999"}, given}, pauses: []int{1}, reason: api.ReasonJobDone, calls: 2},
		"after an error of a proxy":         {replies: []reply{{status: 404, body: "default backend"}, given}, pauses: []int{1}, reason: api.ReasonJobDone, calls: 2},
		"the operator remains unavailable": {
			replies: []reply{{status: 503, after: "590", body: "{}"}}, pauses: []int{590},
			reason: api.ReasonCredentialUnavailable, message: "within 10m0s", calls: 2,
		},
		"wrong code":     {replies: []reply{refused(401)}, reason: api.ReasonCredentialRefused, message: "no *** here", calls: 1},
		"job is deleted": {replies: []reply{{status: 410, body: `{"reason":"JobGone","message":"cancelled"}`}}, reason: api.ReasonJobGone, message: "cancelled", calls: 1},
		"another machine's": {
			replies: []reply{{status: 403, body: `{"reason":"IdentityMismatch","message":"of another"}`}},
			reason:  api.ReasonIdentityMismatch, message: "of another", calls: 1,
		},
		"sent elsewhere": {
			replies: []reply{{status: 307}}, reason: api.ReasonCredentialRefused, message: "307 Temporary Redirect", calls: 1,
		},
		"no JSON": {
			replies: []reply{{status: 200, body: jitBlob}}, reason: api.ReasonConfigInvalid, message: "not valid JSON", calls: 1,
		},
		"more than a credential": {
			replies: []reply{{status: 200, body: `{"jit_config":"` + jitBlob + `","runner":{}}`}}, reason: api.ReasonConfigInvalid, message: `unknown field "runner"`, calls: 1,
		},
		"a credential of another platform": {
			replies: []reply{{status: 200, body: `{"runner_token":"` + runnerToken + `"}`}}, reason: api.ReasonConfigInvalid, message: "registration_url is missing", calls: 1,
		},
		"expired by the machine's clock": {
			replies: []reply{{status: 200, body: `{"jit_config":"` + jitBlob + `","expires_at":"2020-01-01T00:00:00Z"}`}}, reason: api.ReasonJobDone, calls: 1,
		},
		"an invalid bundle": {
			change: func(c *api.Config) { c.Callback.CABundle = "x" }, replies: []reply{given}, reason: api.ReasonConfigInvalid, message: "callback.ca_bundle",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var calls atomic.Int32

			server := startOperator(t, &calls, tc.replies)
			m := newMachine(t)
			m.cfg.Method, m.cfg.JITConfig = api.MethodCallback, ""
			m.cfg.Callback = &api.Callback{URL: server.URL + "/credential", Code: claimCode, CABundle: encodeBundle(server)}
			m.write(t, runScript, requireVariable("ACTIONS_RUNNER_INPUT_JITCONFIG", jitBlob)+printListening+printRunning+printCompleted)

			if tc.change != nil {
				tc.change(&m.cfg)
			}

			result := m.start(t, t.Context())

			for _, seconds := range tc.pauses {
				m.clock.waitAndFire(t, time.Duration(seconds)*time.Second)
			}

			got := m.waitForEnd(t, result)
			if got.Reason != tc.reason || !strings.Contains(got.Message, tc.message) {
				t.Errorf("ended with %s, %q; want %s, %q\n%s", got.Reason, got.Message, tc.reason, tc.message, m.log)
			}

			if calls.Load() != tc.calls {
				t.Errorf("the operator received %d requests, want %d", calls.Load(), tc.calls)
			}
		})
	}
}

// A machine that is stopped while it waits for its credential ends.
func TestWaitForTheCredentialEnds(t *testing.T) {
	t.Parallel()

	var calls atomic.Int32

	server := startOperator(t, &calls, []reply{{status: 503}})
	m := newMachine(t)
	m.cfg.Method, m.cfg.JITConfig = api.MethodCallback, ""
	m.cfg.Callback = &api.Callback{URL: server.URL, Code: claimCode, CABundle: encodeBundle(server)}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	result := m.start(t, ctx)

	timing.WaitUntil(t, "a first try", func() bool { return strings.Contains(m.log.String(), "cannot get the credential yet") })
	cancel()

	if got := m.waitForEnd(t, result); got.Reason != api.ReasonTerminated || got.Phase != api.PhaseFinished {
		t.Errorf("%+v", got)
	}
}

func startOperator(t *testing.T, calls *atomic.Int32, replies []reply) *httptest.Server {
	t.Helper()

	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := int(calls.Add(1))

		if r.Method != http.MethodPost || r.Header.Get("Authorization") != "Bearer "+claimCode {
			t.Errorf("request with %s and %q", r.Method, r.Header.Get("Authorization"))
		}

		next := replies[min(n, len(replies))-1]
		if next.after != "" {
			w.Header().Set("Retry-After", next.after)
		}

		w.Header().Set("Location", "https://elsewhere.example")
		w.WriteHeader(next.status)
		_, _ = io.WriteString(w, next.body)
	}))
	t.Cleanup(server.Close)

	return server
}

func encodeBundle(server *httptest.Server) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
}
