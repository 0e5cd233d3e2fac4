// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/hyperfleet/hyperfleet/platform/store/db"
)

// session is a transaction with few round trips to the server. Independent reads (sendTogether) are
// sent together, and the first of them is sent together with "begin". Deferred writes (Tx.deferred)
// are sent with the next query or with the commit.
type session struct {
	conn *pgx.Conn
	// pending are the statements that are sent with the next query.
	pending pgx.Batch
}

func newSession(conn *pgx.Conn) *session {
	s := &session{conn: conn}
	s.pending.Queue("begin")

	return s
}

// Exec implements db.DBTX.
func (s *session) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := s.flush(ctx); err != nil {
		return pgconn.CommandTag{}, err
	}

	return s.conn.Exec(ctx, sql, args...)
}

// Query implements db.DBTX.
func (s *session) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := s.flush(ctx); err != nil {
		return nil, err
	}

	return s.conn.Query(ctx, sql, args...)
}

// QueryRow implements db.DBTX.
func (s *session) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := s.flush(ctx); err != nil {
		return errorRow{err}
	}

	return s.conn.QueryRow(ctx, sql, args...)
}

// flush sends the pending statements.
func (s *session) flush(ctx context.Context) error {
	results, err := s.send(ctx, 0)
	if err != nil {
		return err
	}

	return results.Close()
}

// sendTogether sends several queries at once. It calls each function twice: first to record its
// statements, then with their results.
func (s *session) sendTogether(ctx context.Context, queries ...func(*db.Queries) error) error {
	for _, query := range queries {
		_ = query(db.New(queryRecorder{&s.pending})) // it has no result yet
	}

	results, err := s.send(ctx, len(queries))
	if err != nil {
		return err
	}

	for _, query := range queries {
		if err := query(db.New(queryResults{results})); err != nil {
			_ = results.Close()

			return err
		}
	}

	return results.Close()
}

func (s *session) commit(ctx context.Context) error {
	s.pending.Queue("commit")

	return s.flush(ctx)
}

// rollback ends a transaction that was not committed. If it fails, the pool closes the connection,
// and the server rolls back.
func (s *session) rollback(ctx context.Context) {
	if status := s.conn.PgConn().TxStatus(); status == 'T' || status == 'E' {
		_, _ = s.conn.Exec(ctx, "rollback")
	}
}

// send sends the pending statements and reads the results of all but the last ones.
func (s *session) send(ctx context.Context, last int) (pgx.BatchResults, error) {
	batch := s.pending
	s.pending = pgx.Batch{}

	results := s.conn.SendBatch(ctx, &batch)

	for range batch.Len() - last {
		if _, err := results.Exec(); err != nil {
			_ = results.Close()

			return nil, err
		}
	}

	return results, nil
}

// errorRow is a row that could not be read.
type errorRow struct{ err error }

// Scan returns the error.
func (r errorRow) Scan(...any) error { return r.err }

var errNoResult = errors.New("the query has no result yet")

// queryRecorder records statements in a batch. Errors of statements whose result is not read are
// returned by the next query or the commit.
type queryRecorder struct{ batch *pgx.Batch }

// Exec implements db.DBTX.
func (a queryRecorder) Exec(_ context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	a.batch.Queue(sql, args...)

	return pgconn.CommandTag{}, nil
}

// Query implements db.DBTX.
func (a queryRecorder) Query(_ context.Context, sql string, args ...any) (pgx.Rows, error) {
	a.batch.Queue(sql, args...)

	return nil, errNoResult
}

// QueryRow implements db.DBTX.
func (a queryRecorder) QueryRow(_ context.Context, sql string, args ...any) pgx.Row {
	a.batch.Queue(sql, args...)

	return errorRow{errNoResult}
}

// queryResults returns the results of statements in their order.
type queryResults struct{ results pgx.BatchResults }

// Exec implements db.DBTX.
func (a queryResults) Exec(context.Context, string, ...any) (pgconn.CommandTag, error) {
	return a.results.Exec()
}

// Query implements db.DBTX.
func (a queryResults) Query(context.Context, string, ...any) (pgx.Rows, error) {
	return a.results.Query()
}

// QueryRow implements db.DBTX.
func (a queryResults) QueryRow(context.Context, string, ...any) pgx.Row { return a.results.QueryRow() }
