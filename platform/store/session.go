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

// session is a transaction that goes to the server seldom: reads that don't depend on each
// other (together) go at once, begin with the first of them, and what is written later (Tx.later)
// before the next query, or with the commit.
type session struct {
	conn *pgx.Conn
	// unsent is what the next query takes along.
	unsent pgx.Batch
}

func newSession(conn *pgx.Conn) *session {
	s := &session{conn: conn}
	s.unsent.Queue("begin")

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
		return noRow{err}
	}

	return s.conn.QueryRow(ctx, sql, args...)
}

// flush sends what is unsent.
func (s *session) flush(ctx context.Context) error {
	results, err := s.send(ctx, 0)
	if err != nil {
		return err
	}

	return results.Close()
}

// together asks several queries at once. Each is run twice: to see what it asks, and with
// the answer.
func (s *session) together(ctx context.Context, queries ...func(*db.Queries) error) error {
	for _, query := range queries {
		_ = query(db.New(asked{&s.unsent})) // it has no answer yet
	}

	results, err := s.send(ctx, len(queries))
	if err != nil {
		return err
	}

	for _, query := range queries {
		if err := query(db.New(answered{results})); err != nil {
			_ = results.Close()

			return err
		}
	}

	return results.Close()
}

// commit ends the transaction.
func (s *session) commit(ctx context.Context) error {
	s.unsent.Queue("commit")

	return s.flush(ctx)
}

// rollback ends a transaction that was not committed. Where it can't, the pool gives the
// connection up, and the server rolls back.
func (s *session) rollback(ctx context.Context) {
	if status := s.conn.PgConn().TxStatus(); status == 'T' || status == 'E' {
		_, _ = s.conn.Exec(ctx, "rollback")
	}
}

// send sends what is unsent, and reads the results of all but the last ones.
func (s *session) send(ctx context.Context, last int) (pgx.BatchResults, error) {
	batch := s.unsent
	s.unsent = pgx.Batch{}

	results := s.conn.SendBatch(ctx, &batch)

	for range batch.Len() - last {
		if _, err := results.Exec(); err != nil {
			_ = results.Close()

			return nil, err
		}
	}

	return results, nil
}

// noRow is a row that is not there, and why.
type noRow struct{ err error }

// Scan gives the error.
func (r noRow) Scan(...any) error { return r.err }

var errNoAnswer = errors.New("there is no answer yet")

// asked notes queries. The errors of statements whose answer nobody waits for are those of
// the next query, or of the commit.
type asked struct{ batch *pgx.Batch }

// Exec implements db.DBTX.
func (a asked) Exec(_ context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	a.batch.Queue(sql, args...)

	return pgconn.CommandTag{}, nil
}

// Query implements db.DBTX.
func (a asked) Query(_ context.Context, sql string, args ...any) (pgx.Rows, error) {
	a.batch.Queue(sql, args...)

	return nil, errNoAnswer
}

// QueryRow implements db.DBTX.
func (a asked) QueryRow(_ context.Context, sql string, args ...any) pgx.Row {
	a.batch.Queue(sql, args...)

	return noRow{errNoAnswer}
}

// answered gives the answers of queries in their order.
type answered struct{ results pgx.BatchResults }

// Exec implements db.DBTX.
func (a answered) Exec(context.Context, string, ...any) (pgconn.CommandTag, error) {
	return a.results.Exec()
}

// Query implements db.DBTX.
func (a answered) Query(context.Context, string, ...any) (pgx.Rows, error) { return a.results.Query() }

// QueryRow implements db.DBTX.
func (a answered) QueryRow(context.Context, string, ...any) pgx.Row { return a.results.QueryRow() }
