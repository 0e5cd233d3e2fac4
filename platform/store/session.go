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

// session is a transaction that goes to the server as seldom as it can: its begin goes with
// the first query, what is written later (later) with the next one or with the commit, and
// reads that don't depend on each other (together) at once.
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

// later queues statements whose answer nobody waits for: their errors are those of the
// next query, or of the commit.
type later struct{ *session }

// Exec queues.
func (l later) Exec(_ context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	l.unsent.Queue(sql, args...)

	return pgconn.CommandTag{}, nil
}

// Exec implements db.DBTX.
func (s *session) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if s.unsent.Len() == 0 {
		return s.conn.Exec(ctx, sql, args...) //nolint:wrapcheck // callers say what they did
	}

	s.unsent.Queue(sql, args...)

	results, err := s.send(ctx, 1)
	if err != nil {
		return pgconn.CommandTag{}, err
	}

	tag, err := results.Exec()

	return tag, errors.Join(err, results.Close())
}

// Query implements db.DBTX.
func (s *session) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if s.unsent.Len() == 0 {
		return s.conn.Query(ctx, sql, args...) //nolint:wrapcheck // callers say what they did
	}

	s.unsent.Queue(sql, args...)

	results, err := s.send(ctx, 1)
	if err != nil {
		return nil, err
	}

	rows, err := results.Query()
	if err != nil {
		return nil, errors.Join(err, results.Close())
	}

	return &lastRows{rows, results}, nil
}

// QueryRow implements db.DBTX.
func (s *session) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if s.unsent.Len() == 0 {
		return s.conn.QueryRow(ctx, sql, args...)
	}

	s.unsent.Queue(sql, args...)

	results, err := s.send(ctx, 1)

	return lastRow{results, err}
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

	return results.Close() //nolint:wrapcheck // callers say what they did
}

// commit ends the transaction.
func (s *session) commit(ctx context.Context) error {
	s.unsent.Queue("commit")

	results, err := s.send(ctx, 0)
	if err != nil {
		return err
	}

	return results.Close() //nolint:wrapcheck // callers say what they did
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

			return nil, err //nolint:wrapcheck // callers say what they did
		}
	}

	return results, nil
}

// lastRows are those of the last query of a batch.
type lastRows struct {
	pgx.Rows

	results pgx.BatchResults
}

// Close ends the batch, too.
func (r *lastRows) Close() {
	r.Rows.Close()
	_ = r.results.Close() // an error of it is the rows'
}

// lastRow is that of the last query of a batch, or why there is none.
type lastRow struct {
	results pgx.BatchResults
	err     error
}

// Scan reads it, and ends the batch.
func (r lastRow) Scan(into ...any) error {
	if r.err != nil {
		return r.err
	}

	if err := r.results.QueryRow().Scan(into...); err != nil {
		_ = r.results.Close()

		return err //nolint:wrapcheck // callers say what they did
	}

	return r.results.Close() //nolint:wrapcheck // callers say what they did
}

var errNoAnswer = errors.New("there is no answer yet")

// asked notes queries.
type asked struct{ batch *pgx.Batch }

// Exec implements db.DBTX.
func (a asked) Exec(_ context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	a.batch.Queue(sql, args...)

	return pgconn.CommandTag{}, errNoAnswer
}

// Query implements db.DBTX.
func (a asked) Query(_ context.Context, sql string, args ...any) (pgx.Rows, error) {
	a.batch.Queue(sql, args...)

	return nil, errNoAnswer
}

// QueryRow implements db.DBTX.
func (a asked) QueryRow(_ context.Context, sql string, args ...any) pgx.Row {
	a.batch.Queue(sql, args...)

	return lastRow{err: errNoAnswer}
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
