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

// How hard a report is tried. The job never waits for it.
const (
	reportTimeout  = 5 * time.Second
	reportTries    = 4
	reportPause    = 500 * time.Millisecond // after the first one; it doubles
	reportMaxPause = 2 * time.Second
	reportQueue    = 32
	// flushTimeout bounds how long the machine's end waits for reports.
	flushTimeout = 15 * time.Second
)

// reporter writes each phase to the log and the status file, and sends it to the
// operator in the background, in order.
type reporter struct {
	log    *slog.Logger
	clock  Clock
	status string // file

	mu   sync.Mutex
	last guest.Report

	queue  chan guest.Report // nil without an endpoint
	done   chan struct{}
	stop   context.CancelFunc
	client *http.Client
	to     guest.ReportTo
}

func newReporter(log *slog.Logger, clock Clock, status string) *reporter {
	return &reporter{log: log, clock: clock, status: status}
}

// connect begins to send to the operator's endpoint.
func (r *reporter) connect(to *guest.ReportTo) error {
	if to == nil {
		return nil
	}

	client, err := operatorClient("report", to.CABundle, reportTimeout)
	if err != nil {
		return err
	}

	r.to, r.client = *to, client
	r.queue, r.done = make(chan guest.Report, reportQueue), make(chan struct{})

	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel

	go r.sendAll(ctx)

	return nil
}

// operatorClient speaks with the operator alone, as verified by the bundle. Field names
// in errors what the bundle belongs to.
func operatorClient(field, bundle string, timeout time.Duration) (*http.Client, error) {
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}}

	if bundle != "" {
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM([]byte(bundle)) {
			return nil, fmt.Errorf("%s.ca_bundle holds no certificate in PEM", field)
		}

		transport.TLSClientConfig.RootCAs = roots
	}

	return &http.Client{
		Transport: transport,
		Timeout:   timeout,
		// Token and code are for this host alone.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

// report tells a phase.
func (r *reporter) report(phase guest.Phase, message string) {
	r.tell(guest.Report{Phase: phase, Message: message})
}

// tell reports at the present time. A phase that was told already is not told again.
func (r *reporter) tell(report guest.Report) {
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.last.Phase == report.Phase && r.last.Reason == report.Reason {
		return
	}

	report.Time = r.clock.Now().UTC()
	r.last = report
	text := "hyperfleet: phase=" + string(report.Phase)

	if report.Reason != "" {
		text += " reason=" + report.Reason
	}

	//nolint:sloglint // one text that people can search a console for
	r.log.Info(text, "phase", string(report.Phase), "reason", report.Reason, "message", report.Message)

	if err := writeStatus(r.status, r.last); err != nil {
		r.log.Warn("cannot write the status file", "error", err.Error())
	}

	if r.queue == nil {
		return
	}

	select {
	case r.queue <- r.last:
	default:
		r.log.Warn("a report was dropped: the endpoint does not take them", "phase", string(report.Phase))
	}
}

// close sends what is left, for a bounded time.
func (r *reporter) close() {
	if r.queue == nil {
		return
	}

	close(r.queue)

	select {
	case <-r.done:
	case <-r.clock.After(flushTimeout):
		r.log.Warn("the last report did not reach the operator in time")
	}

	r.stop()
	<-r.done
	r.client.CloseIdleConnections()
}

func (r *reporter) sendAll(ctx context.Context) {
	defer close(r.done)

	for report := range r.queue {
		wait := reportPause

		for try := 1; ; try++ {
			again, err := r.send(ctx, report)
			if err == nil {
				break
			}

			r.log.Warn("cannot send a report", "phase", string(report.Phase), "try", try, "error", err.Error())

			if !again || r.gaveUp(report, try) || pause(ctx, r.clock, wait) != nil {
				break
			}

			wait = min(2*wait, reportMaxPause)
		}
	}
}

// gaveUp says that a report is not tried again. A later one says more, and must not come too late
// for it. The last one, which has the log, is tried until the machine ends.
func (r *reporter) gaveUp(report guest.Report, tries int) bool {
	return !report.Phase.Last() && (tries >= reportTries || len(r.queue) > 0)
}

// send tells the endpoint once; again says that another try may help.
func (r *reporter) send(ctx context.Context, report guest.Report) (again bool, err error) {
	body, err := encode(report)
	if err != nil {
		return false, err
	}

	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.to.URL, bytes.NewReader(body))
	if err != nil {
		return false, fmt.Errorf("make report request: %w", err)
	}

	req.Header.Set("Authorization", "Bearer "+r.to.Token)
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

	again = resp.StatusCode >= 500 || resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusRequestTimeout

	return again, fmt.Errorf("send report: the operator answered %s", resp.Status)
}

// encode writes a report as one line of JSON. A log is full of <, > and &, which need no
// six bytes each.
func encode(report guest.Report) ([]byte, error) {
	var out bytes.Buffer

	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)

	if err := enc.Encode(report); err != nil {
		return nil, fmt.Errorf("write report: %w", err)
	}

	return out.Bytes(), nil
}

// writeStatus replaces the status file in one step, so that no reader sees half of it.
func writeStatus(file string, report guest.Report) error {
	data, err := encode(report)
	if err != nil {
		return err
	}

	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil { //nolint:gosec // holds no secrets; people may read it
		return fmt.Errorf("make status directory: %w", err)
	}

	if err := os.WriteFile(file+".new", data, 0o644); err != nil { //nolint:gosec // as above
		return fmt.Errorf("write status: %w", err)
	}

	if err := os.Rename(file+".new", file); err != nil {
		return fmt.Errorf("replace status: %w", err)
	}

	return nil
}
