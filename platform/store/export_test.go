// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Plans returns the query plans of both statements of a list, with the names of their scans.
func Plans(t testing.TB, s *Store, query ListQuery) (count, page string) {
	t.Helper()

	statement, err := query.buildStatement()
	if err != nil {
		t.Fatal(err)
	}

	explainOne := func(sql string) string {
		args := append([]any{pgx.QueryExecModeDescribeExec}, statement.args...)

		rows, err := s.pool.Query(context.Background(), "explain "+sql, args...)
		if err != nil {
			t.Fatal(err)
		}

		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}

		return strings.Join(lines, "\n")
	}

	return explainOne(statement.count), explainOne(statement.page)
}

// MaxConns returns the maximum number of connections of the store.
func MaxConns(s *Store) int32 { return s.pool.Config().MaxConns }

// MakeReadOnly makes all idle connections of the store read-only.
func MakeReadOnly(ctx context.Context, s *Store) error {
	for _, conn := range s.pool.AcquireAllIdle(ctx) {
		_, err := conn.Exec(ctx, "set default_transaction_read_only = on")
		conn.Release()

		if err != nil {
			return err
		}
	}

	return nil
}

// SchemaVersion is the version of the schema that the program needs.
const SchemaVersion int64 = schemaVersion
