// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package tracing

import (
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/kit/log"
)

const (
	// minLogInterval is the minimum time between two log lines. Spans are exported every few seconds,
	// and a receiver may be unreachable for a long time.
	minLogInterval = time.Minute
	// maxErrorBytes is the maximum length of a logged error. Errors can contain the receiver's response.
	maxErrorBytes = 500
)

// reporter logs errors of the export, at most one per minLogInterval.
type reporter struct {
	log    *slog.Logger
	clock  clock.PassiveClock
	redact log.Redactor

	mu sync.Mutex
	// lastLogged is the time of the last line, and suppressed the number of errors since then that
	// were not logged.
	lastLogged time.Time
	suppressed int
}

func newReporter(logger *slog.Logger, clk clock.PassiveClock, secrets []string) *reporter {
	return &reporter{log: logger, clock: clk, redact: log.NewRedactor(nil, secrets...)}
}

// Handle implements otel.ErrorHandler, which receives errors that no caller receives.
func (r *reporter) Handle(err error) {
	if err != nil {
		r.report(err.Error())
	}
}

// report logs the text, or counts it as suppressed if the last line is too recent.
func (r *reporter) report(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()

	now := r.clock.Now()
	if !r.lastLogged.IsZero() && now.Sub(r.lastLogged) < minLogInterval {
		r.suppressed++

		return
	}

	r.write(text)
	r.lastLogged = now
}

// write writes a line. The caller must hold mu.
func (r *reporter) write(text string) {
	r.log.Warn("failed to export spans", "error", r.redactText(text), "suppressed", r.suppressed)
	r.suppressed = 0
}

// reportShutdown logs the error of the shutdown, or the number of suppressed errors.
func (r *reporter) reportShutdown(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()

	switch {
	case err != nil:
		r.write("shut down exporter: " + err.Error())
	case r.suppressed > 0:
		r.write("same errors as before")
	}
}

// redactError returns an error with the text of err without secrets. It does not wrap err, because
// wrapped errors could contain secrets.
func (r *reporter) redactError(err error) error { return errors.New(r.redactText(err.Error())) }

func (r *reporter) redactText(text string) string {
	text = r.redact.Redact(text)
	if len(text) > maxErrorBytes {
		text = strings.ToValidUTF8(text[:maxErrorBytes], "") + "..."
	}

	return text
}

// logSink receives the log of OpenTelemetry itself. It ignores the keys and values, because they
// contain the values of environment variables.
type logSink struct{ report *reporter }

// Init does nothing.
func (logSink) Init(logr.RuntimeInfo) {}

// Enabled returns true up to V(1), the level of OpenTelemetry's warnings.
func (logSink) Enabled(level int) bool { return level <= 1 }

// Info reports a warning.
func (s logSink) Info(_ int, text string, _ ...any) { s.report.report(text) }

// Error reports an error.
func (s logSink) Error(err error, text string, _ ...any) {
	if err != nil {
		text += ": " + err.Error()
	}

	s.report.report(text)
}

// WithValues ignores the values and returns the sink.
func (s logSink) WithValues(...any) logr.LogSink { return s }

// WithName ignores the name and returns the sink.
func (s logSink) WithName(string) logr.LogSink { return s }
