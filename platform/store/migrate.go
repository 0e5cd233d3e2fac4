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
	"github.com/pressly/goose/v3/lock"
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
func migrate(parent context.Context, config *pgx.ConnConfig) (err error) {
	ctx, cancel := context.WithTimeout(parent, migrateTimeout)
	defer cancel()

	// Neither the wait for another replica nor a migration is a query of a caller.
	delete(config.RuntimeParams, "statement_timeout")
	delete(config.RuntimeParams, "idle_in_transaction_session_timeout")

	handle := stdlib.OpenDB(*config)
	defer func() { err = errors.Join(err, handle.Close()) }()

	files, errFiles := fs.Sub(migrations, "migrations")
	locker, errLocker := lock.NewPostgresSessionLocker(
		lock.WithLockID(migrateLock), lock.WithLockTimeout(1, uint64(migrateTimeout/time.Second)))

	if err := errors.Join(errFiles, errLocker); err != nil {
		return err
	}

	provider, err := goose.NewProvider(goose.DialectPostgres, handle, files, goose.WithSessionLocker(locker))
	if err == nil {
		_, err = provider.Up(ctx)
	}

	if err != nil {
		return fmt.Errorf("bring database schema up to date: %w", explain(err))
	}

	return nil
}
