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

// system is the database's name in metrics.
const system = "postgres"

// tracer counts and times queries by the names that they have in their first line.
type tracer struct {
	calls *metrics.Calls
	clock clock.PassiveClock
}

type traceKey struct{}

type traced struct {
	name  string
	start time.Time
}

// TraceQueryStart notes a query's beginning.
func (t *tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	return context.WithValue(ctx, traceKey{}, traced{name: queryName(data.SQL), start: t.clock.Now()})
}

// TraceBatchStart implements pgx.BatchTracer.
func (t *tracer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return context.WithValue(ctx, traceKey{}, traced{start: t.clock.Now()})
}

// TraceBatchQuery notes one query of a batch, with the time until its answer was there.
func (t *tracer) TraceBatchQuery(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchQueryData) {
	if batch, ok := ctx.Value(traceKey{}).(traced); ok {
		t.calls.Observe(system, queryName(data.SQL), t.clock.Since(batch.start), data.Err)
	}
}

// TraceBatchEnd implements pgx.BatchTracer.
func (t *tracer) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// TraceQueryEnd notes how it went.
func (t *tracer) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	if query, ok := ctx.Value(traceKey{}).(traced); ok {
		t.calls.Observe(system, query.name, t.clock.Since(query.start), data.Err)
	}
}

// queryName is GetResource for "-- name: GetResource :one", and the first word of a
// statement without such a line: begin, commit, rollback.
func queryName(sql string) string {
	if named, ok := strings.CutPrefix(sql, "-- name: "); ok {
		name, _, _ := strings.Cut(named, " ")

		return name
	}

	word, _, _ := strings.Cut(strings.TrimSpace(sql), " ")

	return strings.ToLower(word)
}
