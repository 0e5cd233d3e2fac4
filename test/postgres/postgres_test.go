// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package postgres_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/test/pgproc"
)

// TestServerEndsWithContext checks that the server ends when its context is canceled.
func TestServerEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	dir, err := os.MkdirTemp("", "hyperfleet-postgres-") //nolint:usetesting // the server's user cannot access t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)

	server, err := pgproc.Start(ctx, pgproc.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}

	cancel()

	select {
	case <-server.Process().Done():
	case <-time.After(time.Minute):
		t.Fatal("the server still runs")
	}

	if err := syscall.Kill(server.Process().PID(), 0); err == nil {
		t.Error("the server's process is still there")
	}
}

// TestMissingPostgres checks that the error without PostgreSQL programs names initdb.
func TestMissingPostgres(t *testing.T) {
	_, err := pgproc.Start(t.Context(), pgproc.Options{Dir: t.TempDir(), BinDir: filepath.Join(t.TempDir(), "none")})
	if err == nil || !strings.Contains(err.Error(), "initdb") {
		t.Errorf("start without programs: %v, want an error that names initdb", err)
	}
}
