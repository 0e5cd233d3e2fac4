// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
)

//go:embed migrations/*.sql
var migrations embed.FS

const (
	// migrateTimeout bounds the wait for another replica, and the migrations.
	migrateTimeout = 10 * time.Minute
	// migrateLock is the advisory lock of the replica that migrates.
	migrateLock = 0x6879_7066_0001
)

// migrate brings the schema up to date, under a lock that one replica has at a time.
func migrate(parent context.Context, config *pgx.ConnConfig) error {
	ctx, cancel := context.WithTimeout(parent, migrateTimeout)
	defer cancel()

	// Neither the wait for another replica nor a migration is a query of a caller.
	delete(config.RuntimeParams, "statement_timeout")
	delete(config.RuntimeParams, "idle_in_transaction_session_timeout")

	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("reach database: %w", explain(err))
	}
	// The lock ends with the connection, whatever happened to it.
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is left to say on it

	if _, err := conn.Exec(ctx, "select pg_advisory_lock($1)", int64(migrateLock)); err != nil {
		return fmt.Errorf("wait for other replicas' migrations: %w", explain(err))
	}

	if err := migrateLocked(ctx, config); err != nil {
		return fmt.Errorf("bring database schema up to date: %w", explain(err))
	}

	return nil
}

func migrateLocked(ctx context.Context, config *pgx.ConnConfig) (err error) {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}

	handle := stdlib.OpenDB(*config)
	defer func() { err = errors.Join(err, handle.Close()) }()

	provider, err := goose.NewProvider(goose.DialectPostgres, handle, files)
	if err != nil {
		return err
	}

	_, err = provider.Up(ctx)

	return err
}
