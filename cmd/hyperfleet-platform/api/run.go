// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/certwatcher"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/cmd/internal/mounted"
	"github.com/hyperfleet/hyperfleet/cmd/internal/signals"
	"github.com/hyperfleet/hyperfleet/cmd/internal/version"
	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/kit/metrics"
	"github.com/hyperfleet/hyperfleet/kit/tracing"
	"github.com/hyperfleet/hyperfleet/platform/entity"
	"github.com/hyperfleet/hyperfleet/platform/probes"
	"github.com/hyperfleet/hyperfleet/platform/server"
	"github.com/hyperfleet/hyperfleet/platform/store"
)

const (
	// headerTimeout, readTimeout, writeTimeout and idleTimeout are the timeouts of the HTTP server. The
	// handler has its own timeout for responses. A client can wait for changes for up to one minute.
	headerTimeout = 10 * time.Second
	readTimeout   = 30 * time.Second
	writeTimeout  = 90 * time.Second
	idleTimeout   = 2 * time.Minute
	// openTimeout is the timeout to connect to the database, including migrations.
	openTimeout = 5 * time.Minute
	// stopTimeout is the grace period for running requests at shutdown.
	stopTimeout = 8 * time.Second
	// closeTimeout is how long the database may take to close its connections.
	closeTimeout = 3 * time.Second
)

// run serves the API until a signal, or until a configuration file changes.
func run(ctx context.Context, c platform.API, files *mounted.Watcher, diagnostics io.Writer) error {
	// Collect garbage less often, because CPU time during a burst of requests matters more than memory. The
	// heap is small.
	cli.SetGCPercent(200)

	// Both values were validated with the configuration.
	level, _ := log.ParseLevel(c.Log.Level)
	format, _ := log.ParseFormat(c.Log.Format)
	logger := log.New(diagnostics, log.Options{Level: level, Format: format})

	ctx, cancel := files.CancelOnChange(ctx, logger)
	defer cancel()

	ctx, stop := signals.NotifyContext(ctx)
	defer stop()

	info := version.Read()

	endTracing, err := tracing.Start(ctx, tracing.Options{
		Service: "hyperfleet-api", Version: info.Version, Log: logger, Output: diagnostics,
	})
	if err != nil {
		return err
	}
	defer endTracing()

	registry, err := metrics.NewRegistry("hyperfleet-platform", info.Version, info.Commit, info.Go)
	if err != nil {
		return err
	}

	calls, err := metrics.NewCallMetrics(registry, nil)
	if err != nil {
		return err
	}

	database, err := openStore(ctx, c, calls, logger)
	if err != nil {
		return err
	}
	defer closeStore(database, logger)

	schemas, err := entity.LoadSchemas(ctx, c.SpecSchemas)
	if err != nil {
		return err
	}

	if len(c.Server.JWT.Configs) == 0 {
		logger.Warn("server.jwt is not set: every client that reaches the API has all permissions",
			slog.String("address", c.Server.Address))
	}

	handler, err := server.New(server.Options{
		Store: database, Entities: c.Entities, Schemas: schemas, Issuers: c.Server.JWT.Configs, Roles: c.Roles, Adapters: c.Adapters,
		Tenant: c.Server.Tenant, StuckAfter: c.StuckAfter, Log: logger, Metrics: registry, Calls: calls,
		Stopping: ctx,
	})
	if err != nil {
		return err
	}

	probeServer, err := probes.Listen(ctx, probes.Options{
		HealthAddress: c.Server.HealthAddress, MetricsAddress: c.Server.MetricsAddress, Gatherer: registry, Log: logger,
		CheckReady: func(probeCtx context.Context) error {
			if ctx.Err() != nil {
				return errors.New("the program is shutting down")
			}

			return database.Ping(probeCtx)
		},
	})
	if err != nil {
		return err
	}
	defer probeServer.Close(ctx) //nolint:errcheck // the process exits

	return serve(ctx, c.Server, handler, logger)
}

// openStore connects to the database. It reads the URL from a file and never logs it, because the URL
// contains a password.
func openStore(ctx context.Context, c platform.API, calls *metrics.CallMetrics, logger *slog.Logger) (*store.Store, error) {
	readURL := func() (string, error) {
		url, err := log.ReadSecretFile(c.Database.URLFile)
		if err != nil {
			return "", fmt.Errorf("database.url_file: %w", err)
		}

		return url.Reveal(), nil
	}

	url, err := readURL()
	if err != nil {
		return nil, err
	}

	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()

	return store.Open(ctx, store.Options{
		URL: url, ReadURL: readURL, MaxConns: c.Database.MaxConnections, Timeout: c.Database.QueryTimeout,
		ChangesRetention: c.ChangesKept, Log: logger, Calls: calls,
	})
}

// closeStore closes the database. It does not wait longer than closeTimeout for a database that does not answer.
func closeStore(database *store.Store, logger *slog.Logger) {
	closed := make(chan struct{})

	go func() {
		defer close(closed)
		database.Close()
	}()

	select {
	case <-closed:
	case <-time.After(closeTimeout):
		logger.Warn("the database did not close its connections in time")
	}
}

// serve serves the API until ctx is done. It then waits for running requests, up to stopTimeout.
func serve(ctx context.Context, c platform.Server, handler http.Handler, logger *slog.Logger) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.Address)
	if err != nil {
		return fmt.Errorf("listen for the API: %w", err)
	}

	httpServer := &http.Server{
		Handler: handler, ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: bounds.MaxRequestHeader,
		ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}

	if c.TLSCertFile != "" {
		watcher, err := certwatcher.New(c.TLSCertFile, c.TLSKeyFile)
		if err != nil {
			return errors.Join(fmt.Errorf("read server.tls_cert_file: %w", err), listener.Close())
		}

		go func() {
			if err := watcher.Start(ctx); err != nil {
				logger.Error("the certificate watch has failed: a new certificate is not loaded", slog.Any("error", err))
			}
		}()

		listener = tls.NewListener(listener, &tls.Config{
			MinVersion: tls.VersionTLS12, GetCertificate: watcher.GetCertificate, NextProtos: []string{"h2", "http/1.1"},
		})
	}

	serveErr := make(chan error, 1)

	go func() { serveErr <- httpServer.Serve(listener) }()

	logger.Info("the fleet API listens", slog.String("address", listener.Addr().String()))

	select {
	case err := <-serveErr:
		return fmt.Errorf("serve the API: %w", err)
	case <-ctx.Done():
	}

	shutdownCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()

	if err := httpServer.Shutdown(shutdownCtx); err != nil {
		return errors.Join(fmt.Errorf("wait for running requests: %w", err), httpServer.Close())
	}

	logger.Info("the fleet API has stopped")

	return nil
}
