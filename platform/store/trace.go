// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/kit/metrics"
)

// system is the name of the database in metrics.
const system = "postgres"

// tracer counts and times queries by the name in their first line.
type tracer struct {
	calls *metrics.CallMetrics
	clock clock.PassiveClock
}

type traceKey struct{}

type queryTrace struct {
	name  string
	start time.Time
}

// TraceQueryStart records the start of a query.
func (t *tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	return context.WithValue(ctx, traceKey{}, queryTrace{name: parseQueryName(data.SQL), start: t.clock.Now()})
}

// TraceBatchStart implements pgx.BatchTracer.
func (t *tracer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return context.WithValue(ctx, traceKey{}, queryTrace{start: t.clock.Now()})
}

// TraceBatchQuery records one query of a batch, with the time until its result arrived.
func (t *tracer) TraceBatchQuery(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchQueryData) {
	if batch, ok := ctx.Value(traceKey{}).(queryTrace); ok {
		t.calls.Observe(system, parseQueryName(data.SQL), t.clock.Since(batch.start), data.Err)
	}
}

// TraceBatchEnd implements pgx.BatchTracer.
func (t *tracer) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// TraceQueryEnd records the result of a query.
func (t *tracer) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	if query, ok := ctx.Value(traceKey{}).(queryTrace); ok {
		t.calls.Observe(system, query.name, t.clock.Since(query.start), data.Err)
	}
}

// parseQueryName returns GetResource for "-- name: GetResource". For a statement without such
// a line it returns the first word: begin, commit or rollback.
func parseQueryName(sql string) string {
	if nameLine, ok := strings.CutPrefix(sql, "-- name: "); ok {
		name, _, _ := strings.Cut(nameLine, "\n")

		return name
	}

	word, _, _ := strings.Cut(strings.TrimSpace(sql), " ")

	return strings.ToLower(word)
}
