// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// querier sends statements: the pool, a connection or a transaction. The first line of each statement has its name, for
// metrics.
type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// queryOne returns the first row of a query, or pgx.ErrNoRows.
func queryOne[T any](ctx context.Context, to querier, toRow pgx.RowToFunc[T], sql string, args ...any) (row T, err error) {
	rows, err := to.Query(ctx, sql, args...)
	if err != nil {
		return row, err
	}

	return pgx.CollectOneRow(rows, toRow)
}

func queryAll[T any](ctx context.Context, to querier, toRow pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	rows, err := to.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}

	return pgx.CollectRows(rows, toRow)
}

// session is a transaction with few round trips to the server. The statements in pending are sent together: "begin" and
// reads that do not depend on each other with the first query, and writes without a result with the next query or with the
// commit.
type session struct {
	conn *pgx.Conn
	// pending are the statements that are sent with the next query. They can have functions that read their results. The
	// error of a statement without such a function is returned by the next query or the commit.
	pending *pgx.Batch
}

func newSession(conn *pgx.Conn) *session {
	s := &session{conn: conn, pending: &pgx.Batch{}}
	s.pending.Queue("begin")

	return s
}

// Exec implements querier.
func (s *session) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := s.flush(ctx); err != nil {
		return pgconn.CommandTag{}, err
	}

	return s.conn.Exec(ctx, sql, args...)
}

// Query implements querier.
func (s *session) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := s.flush(ctx); err != nil {
		return nil, err
	}

	return s.conn.Query(ctx, sql, args...)
}

// flush sends the pending statements.
func (s *session) flush(ctx context.Context) error {
	batch := s.pending
	s.pending = &pgx.Batch{}

	return s.conn.SendBatch(ctx, batch).Close()
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
