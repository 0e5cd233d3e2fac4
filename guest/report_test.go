// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest_test

import (
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	api "github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

// reportEndpoint is the operator's endpoint for reports.
type reportEndpoint struct {
	mu     sync.Mutex
	phases []string
	calls  int
	// getStatus returns the status of the n-th call, counted from 1.
	getStatus func(n int) int
}

func (e *reportEndpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()

	e.calls++

	if r.Method != http.MethodPost || r.Header.Get("Authorization") != "Bearer "+reportToken {
		w.WriteHeader(http.StatusUnauthorized)

		return
	}

	var report api.Report
	if err := json.NewDecoder(r.Body).Decode(&report); err != nil {
		w.WriteHeader(http.StatusBadRequest)

		return
	}

	status := http.StatusNoContent
	if e.getStatus != nil {
		status = e.getStatus(e.calls)
	}

	if status == http.StatusNoContent {
		e.phases = append(e.phases, string(report.Phase))
	}

	w.Header().Set("Location", "https://elsewhere.example")
	w.WriteHeader(status)
}

func (e *reportEndpoint) getReports() (string, int) {
	e.mu.Lock()
	defer e.mu.Unlock()

	return strings.Join(e.phases, " "), e.calls
}

func TestReportsReachTheOperator(t *testing.T) {
	t.Parallel()

	const all = "Started Configuring Listening Running Finished"

	for name, tc := range map[string]struct {
		answer func(int) int
		pauses int
		change func(*api.ReportTo)
		want   string
		calls  int
		log    string
	}{
		"all of them, in order":        {want: all, calls: 5},
		"again after an error":         {answer: func(n int) int { return map[bool]int{true: 503, false: 204}[n == 5 || n == 6] }, pauses: 2, want: all, calls: 7},
		"not again after a rejection":  {answer: func(int) int { return 403 }, calls: 5, log: "403 Forbidden"},
		"not on to another host":       {answer: func(int) int { return 307 }, calls: 5, log: "307 Temporary Redirect"},
		"wrong token":                  {change: func(r *api.ReportTo) { r.Token = runnerToken }, calls: 5, log: "401 Unauthorized"},
		"not to an untrusted endpoint": {change: func(r *api.ReportTo) { r.CABundle = "" }, pauses: -1, log: "certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			e := &reportEndpoint{getStatus: tc.answer}
			server := httptest.NewTLSServer(e)

			defer server.Close()

			m := newMachine(t)
			m.cfg.Report = &api.ReportTo{
				URL: server.URL + "/report", Token: reportToken,
				CABundle: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})),
			}

			if tc.change != nil {
				tc.change(m.cfg.Report)
			}

			m.write(t, runScript, printListening+printRunning+printCompleted)

			result := m.start(t, t.Context())

			for i := range tc.pauses {
				m.clock.waitAndFire(t, 500*time.Millisecond<<i)
			}

			if tc.pauses < 0 { // the machine does not wait forever
				timing.WaitUntil(t, tc.log, func() bool { return strings.Contains(m.log.String(), tc.log) })
				m.clock.waitAndFire(t, 15*time.Second)
			}

			if got := m.waitForEnd(t, result); got.Reason != api.ReasonJobDone {
				t.Errorf("%+v", got)
			}

			if got, calls := e.getReports(); got != tc.want || calls != tc.calls {
				t.Errorf("the operator got %q in %d calls, want %q in %d\n%s", got, calls, tc.want, tc.calls, m.log)
			}

			if !strings.Contains(m.log.String(), tc.log) {
				t.Errorf("log lacks %q:\n%s", tc.log, m.log)
			}
		})
	}
}

// While the operator is unavailable, outdated reports are dropped. The last report, which has the log, is
// retried until the machine ends.
func TestLastReportIsRetriedLongest(t *testing.T) {
	t.Parallel()

	ended := make(chan struct{})
	e := &reportEndpoint{getStatus: func(n int) int {
		<-ended

		return map[bool]int{true: http.StatusTooManyRequests, false: http.StatusNoContent}[n < 10]
	}}
	server := httptest.NewServer(e)

	defer server.Close()

	m := newMachine(t)
	m.cfg.Report = &api.ReportTo{URL: server.URL + "/report", Token: reportToken}
	m.write(t, runScript, printListening+printRunning+printCompleted)

	result := m.start(t, t.Context())

	// The last report is in the queue when the service waits for its delivery.
	timing.WaitUntil(t, "the service waits for the last report", func() bool { return m.clock.hasTimer(15 * time.Second) })
	close(ended)

	for _, delay := range []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second, 2 * time.Second, 2 * time.Second} {
		m.clock.waitAndFire(t, delay)
	}

	if got := m.waitForEnd(t, result); got.Reason != api.ReasonJobDone {
		t.Errorf("%+v", got)
	}

	if got, calls := e.getReports(); got != "Finished" || calls != 10 {
		t.Errorf("the operator got %q in %d calls\n%s", got, calls, m.log)
	}
}
