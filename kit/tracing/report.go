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
	// quiet is the least time between two lines: spans are exported every few seconds,
	// and a receiver may be away for long.
	quiet = time.Minute
	// longest is how much of an error is told, in bytes: a receiver's answer is in it.
	longest = 500
)

// reporter logs what goes wrong with the export, at most once in a while.
type reporter struct {
	log    *slog.Logger
	clock  clock.PassiveClock
	redact log.Redactor

	mu sync.Mutex
	// told is when the last line was written, and held how many were not since.
	told time.Time
	held int
}

func newReporter(logger *slog.Logger, clk clock.PassiveClock, secrets []string) *reporter {
	return &reporter{log: logger, clock: clk, redact: log.NewRedactor(nil, secrets...)}
}

// Handle is OpenTelemetry's handler of errors that nobody returns.
func (r *reporter) Handle(err error) {
	if err != nil {
		r.say(err.Error())
	}
}

func (r *reporter) say(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()

	now := r.clock.Now()
	if !r.told.IsZero() && now.Sub(r.told) < quiet {
		r.held++

		return
	}

	r.write(text)
	r.told = now
}

// write writes a line. The mu is held.
func (r *reporter) write(text string) {
	r.log.Warn("trouble with the export of spans", "error", r.cleanText(text), "notTold", r.held)
	r.held = 0
}

// last tells at the end what was not told yet.
func (r *reporter) last(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()

	switch {
	case err != nil:
		r.write("end the export: " + err.Error())
	case r.held > 0:
		r.write("as before")
	}
}

// clean takes secrets out of an error. What it wraps is lost: there would be secrets in it.
func (r *reporter) clean(err error) error { return errors.New(r.cleanText(err.Error())) }

func (r *reporter) cleanText(text string) string {
	text = r.redact.Text(text)
	if len(text) > longest {
		text = strings.ToValidUTF8(text[:longest], "") + "..."
	}

	return text
}

// sink takes what OpenTelemetry itself logs. Of values it says nothing: they are what
// variables hold.
type sink struct{ report *reporter }

// Init is not needed.
func (sink) Init(logr.RuntimeInfo) {}

// Enabled lets warnings through (V(1)), which OpenTelemetry's errors are too.
func (sink) Enabled(level int) bool { return level <= 1 }

// Info is a warning.
func (s sink) Info(_ int, text string, _ ...any) { s.report.say(text) }

// Error is one.
func (s sink) Error(err error, text string, _ ...any) {
	if err != nil {
		text += ": " + err.Error()
	}

	s.report.say(text)
}

// WithValues drops them.
func (s sink) WithValues(...any) logr.LogSink { return s }

// WithName drops it.
func (s sink) WithName(string) logr.LogSink { return s }
