// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hyperfleet/hyperfleet/api/guest"
)

// Limits of sending a report. The job never waits for a report.
const (
	reportTimeout       = 5 * time.Second
	reportAttempts      = 4
	reportRetryDelay    = 500 * time.Millisecond // after the first attempt; it doubles after each further one
	reportMaxRetryDelay = 2 * time.Second
	reportQueueSize     = 32
	// flushTimeout limits how long the end of the machine waits for unsent reports.
	flushTimeout = 15 * time.Second
	// terminationFlushTimeout is this limit if the service is stopped.
	terminationFlushTimeout = 7 * time.Second
)

// reporter writes each phase to the log and to the status file, and sends it to the operator. It sends
// reports in the background and in order.
type reporter struct {
	log    *slog.Logger
	clock  Clock
	status string // path of the status file

	mu         sync.Mutex
	lastReport guest.Report
	// runnerVersion is added to each report. It is empty until the runner has named its release.
	runnerVersion string

	queue    chan guest.Report // nil if there is no endpoint
	done     chan struct{}
	stop     context.CancelFunc
	client   *http.Client
	endpoint guest.ReportTo
}

func newReporter(log *slog.Logger, clock Clock, status string) *reporter {
	return &reporter{log: log, clock: clock, status: status}
}

// connect starts sending reports to the operator's endpoint. It does nothing if endpoint is nil.
func (r *reporter) connect(endpoint *guest.ReportTo) error {
	if endpoint == nil {
		return nil
	}

	client, err := newOperatorClient("report", endpoint.CABundle, reportTimeout)
	if err != nil {
		return err
	}

	r.endpoint, r.client = *endpoint, client
	r.queue, r.done = make(chan guest.Report, reportQueueSize), make(chan struct{})

	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel

	go r.sendAll(ctx)

	return nil
}

// newOperatorClient returns an HTTP client for a service that the operator configures: the operator itself, or
// the secrets manager. The client verifies the server with the CA bundle, or with the system's CAs if the bundle
// is empty. It does not follow redirects. field is the configuration field that contains the bundle. Errors name
// it.
func newOperatorClient(field, bundle string, timeout time.Duration) (*http.Client, error) {
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}}

	if bundle != "" {
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM([]byte(bundle)) {
			return nil, fmt.Errorf("%s.ca_bundle contains no certificate in PEM", field)
		}

		transport.TLSClientConfig.RootCAs = roots
	}

	return &http.Client{
		Transport: transport,
		Timeout:   timeout,
		// A redirect would send the token or the code to another host.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

// reportPhase reports a phase with a message.
func (r *reporter) reportPhase(phase guest.Phase, message string) {
	r.record(guest.Report{Phase: phase, Message: message})
}

// setRunnerVersion adds the release of the runner to the reports that follow.
func (r *reporter) setRunnerVersion(version string) {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.runnerVersion = version
}

// record sets the time of a report, logs it, writes it to the status file and queues it for the operator. It
// does nothing if the last report has the same phase and reason. It drops the report if the queue is full.
func (r *reporter) record(report guest.Report) {
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.lastReport.Phase == report.Phase && r.lastReport.Reason == report.Reason {
		return
	}

	report.Time, report.RunnerVersion = r.clock.Now().UTC(), r.runnerVersion
	r.lastReport = report
	text := "hyperfleet: phase=" + string(report.Phase)

	if report.Reason != "" {
		text += " reason=" + report.Reason
	}

	//nolint:sloglint // one text that people can search for on a console
	r.log.Info(text, "phase", string(report.Phase), "reason", report.Reason, "message", report.Message)

	if err := writeStatus(r.status, r.lastReport); err != nil {
		r.log.Warn("cannot write the status file", "error", err.Error())
	}

	if r.queue == nil {
		return
	}

	select {
	case r.queue <- r.lastReport:
	default:
		r.log.Warn("a report was dropped because the queue of unsent reports is full", "phase", string(report.Phase))
	}
}

// close sends the remaining reports. It stops after flushTimeout, or after terminationFlushTimeout if ctx has ended.
func (r *reporter) close(ctx context.Context) {
	if r.queue == nil {
		return
	}

	timeout := flushTimeout
	if ctx.Err() != nil {
		timeout = terminationFlushTimeout
	}

	close(r.queue)

	select {
	case <-r.done:
	case <-r.clock.After(timeout):
		r.log.Warn("the last report could not be sent to the operator in time")
	}

	r.stop()
	<-r.done
	r.client.CloseIdleConnections()
}

func (r *reporter) sendAll(ctx context.Context) {
	defer close(r.done)

	for report := range r.queue {
		wait := reportRetryDelay

		for attempt := 1; ; attempt++ {
			isTransient, err := r.send(ctx, report)
			if err == nil {
				break
			}

			r.log.Warn("cannot send a report", "phase", string(report.Phase), "attempt", attempt, "error", err.Error())

			if !isTransient || r.shouldGiveUp(report, attempt) || sleep(ctx, r.clock, wait) != nil {
				break
			}

			wait = min(2*wait, reportMaxRetryDelay)
		}
	}
}

// shouldGiveUp returns whether to stop retrying a report. A later report has newer information and must not
// be delayed by retries of an earlier one. The last report, which has the log, is retried until the machine
// ends.
func (r *reporter) shouldGiveUp(report guest.Report, attempts int) bool {
	return !report.Phase.Last() && (attempts >= reportAttempts || len(r.queue) > 0)
}

// send sends the report to the endpoint once. isTransient is true if a retry can succeed.
func (r *reporter) send(ctx context.Context, report guest.Report) (isTransient bool, err error) {
	body, err := encodeReport(report)
	if err != nil {
		return false, err
	}

	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.endpoint.URL, bytes.NewReader(body))
	if err != nil {
		return false, fmt.Errorf("create report request: %w", err)
	}

	req.Header.Set("Authorization", "Bearer "+r.endpoint.Token)
	req.Header.Set("Content-Type", "application/json")

	resp, err := r.client.Do(req)
	if err != nil {
		return ctx.Err() == nil, fmt.Errorf("send report: %w", err)
	}

	defer func() { _ = resp.Body.Close() }()

	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10)

	if resp.StatusCode/100 == 2 {
		return false, nil
	}

	isTransient = resp.StatusCode >= 500 || resp.StatusCode == http.StatusTooManyRequests ||
		resp.StatusCode == http.StatusRequestTimeout

	return isTransient, fmt.Errorf("send report: the operator responded %s", resp.Status)
}

// encodeReport encodes a report as one line of JSON. It does not escape <, > and &, because logs contain many
// of them and each escape takes six bytes.
func encodeReport(report guest.Report) ([]byte, error) {
	var out bytes.Buffer

	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)

	if err := enc.Encode(report); err != nil {
		return nil, fmt.Errorf("encode report: %w", err)
	}

	return out.Bytes(), nil
}

// writeStatus replaces the status file atomically, so that readers never see a partial file.
func writeStatus(file string, report guest.Report) error {
	data, err := encodeReport(report)
	if err != nil {
		return err
	}

	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil { //nolint:gosec // contains no secrets; people may read it
		return fmt.Errorf("create status directory: %w", err)
	}

	if err := os.WriteFile(file+".new", data, 0o644); err != nil { //nolint:gosec // as above
		return fmt.Errorf("write status: %w", err)
	}

	if err := os.Rename(file+".new", file); err != nil {
		return fmt.Errorf("replace status: %w", err)
	}

	return nil
}
