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
	// migrateTimeout limits the wait for another replica and the migrations together.
	migrateTimeout = 10 * time.Minute
	// migrateLock is the advisory lock that a replica holds while it migrates.
	migrateLock = 0x6879_7066_0001
)

// schemaVersion is the number of the last file in migrations.
const schemaVersion = 5

// checkSchema returns an error if the schema is that of an earlier version of the program.
func checkSchema(ctx context.Context, tx pgx.Tx) error {
	var version int64

	row := tx.QueryRow(ctx, "select coalesce(max(version_id), 0) from goose_db_version where is_applied")
	if err := row.Scan(&version); err != nil {
		return err
	}

	if version < schemaVersion {
		return fmt.Errorf("the schema has version %d, older than %d: restart the program, so that it updates the schema",
			version, schemaVersion)
	}

	return nil
}

// migrate updates the schema. Only one replica at a time migrates.
func migrate(parent context.Context, config *pgx.ConnConfig) (err error) {
	ctx, cancel := context.WithTimeout(parent, migrateTimeout)
	defer cancel()

	// The timeouts of queries must not apply to the wait for another replica or to a migration.
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
		return fmt.Errorf("update database schema: %w", classifyError(err))
	}

	return nil
}
