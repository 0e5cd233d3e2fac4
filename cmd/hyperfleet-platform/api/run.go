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
	"github.com/hyperfleet/hyperfleet/cmd/internal/version"
	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/kit/metrics"
	"github.com/hyperfleet/hyperfleet/kit/mounted"
	"github.com/hyperfleet/hyperfleet/kit/tracing"
	"github.com/hyperfleet/hyperfleet/platform/entity"
	"github.com/hyperfleet/hyperfleet/platform/probes"
	"github.com/hyperfleet/hyperfleet/platform/server"
	"github.com/hyperfleet/hyperfleet/platform/store"
)

const (
	// headerTimeout, readTimeout and idleTimeout bound what a client may take its time
	// with. Answers have a bound in the handler: who waits for changes waits for up to a
	// minute.
	headerTimeout = 10 * time.Second
	readTimeout   = 30 * time.Second
	writeTimeout  = 90 * time.Second
	idleTimeout   = 2 * time.Minute
	// openTimeout bounds the beginning, migrations included.
	openTimeout = 5 * time.Minute
	// stopTimeout is how long requests may take to end.
	stopTimeout = 25 * time.Second
)

// run serves until ctx ends, or the files of its configuration are others.
func run(ctx context.Context, c platform.API, files *mounted.Files, diagnostics io.Writer) error {
	// A burst is worth more than the memory: the heap is small.
	cli.SetGCPercent(200)

	// Both were validated.
	level, _ := log.ParseLevel(c.Log.Level)
	format, _ := log.ParseFormat(c.Log.Format)
	logger := log.New(diagnostics, log.Options{Level: level, Format: format})

	ctx, stop := files.Until(ctx, logger)
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

	calls, err := metrics.NewCalls(registry, nil)
	if err != nil {
		return err
	}

	database, err := openStore(ctx, c, calls, logger)
	if err != nil {
		return err
	}
	defer database.Close()

	schemas, err := entity.LoadSchemas(ctx, c.SpecSchemas)
	if err != nil {
		return err
	}

	if len(c.Server.JWT.Configs) == 0 {
		logger.Warn("without server.jwt everybody who reaches the API may do everything", slog.String("address", c.Server.Address))
	}

	handler, err := server.New(server.Options{
		Store: database, Entities: c.Entities, Schemas: schemas, Issuers: c.Server.JWT.Configs, Roles: c.Roles, Adapters: c.Adapters,
		Tenant: c.Server.Tenant, StuckAfter: c.StuckAfter, Log: logger, Metrics: registry, Calls: calls,
		Stopping: ctx,
	})
	if err != nil {
		return err
	}

	looked, err := probes.Listen(ctx, probes.Options{
		HealthAddress: c.Server.HealthAddress, MetricsAddress: c.Server.MetricsAddress, Gatherer: registry, Log: logger,
		Ready: func(asked context.Context) error {
			if ctx.Err() != nil {
				return errors.New("the program is about to end")
			}

			return database.Ping(asked)
		},
	})
	if err != nil {
		return err
	}
	defer looked.Close(ctx) //nolint:errcheck // the process ends

	return serve(ctx, c.Server, handler, logger)
}

// openStore connects to the database. The URL has a password in it, so it is read from a
// file, and told to nobody.
func openStore(ctx context.Context, c platform.API, calls *metrics.Calls, logger *slog.Logger) (*store.Store, error) {
	url, err := log.ReadSecret(c.Database.URLFile)
	if err != nil {
		return nil, fmt.Errorf("database.url_file: %w", err)
	}

	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()

	return store.Open(ctx, store.Options{
		URL: url.Reveal(), MaxConns: c.Database.MaxConnections, Timeout: c.Database.QueryTimeout, ChangesKept: c.ChangesKept,
		Log: logger, Calls: calls,
	})
}

// serve listens until ctx ends, and lets requests end then.
func serve(ctx context.Context, c platform.Server, handler http.Handler, logger *slog.Logger) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.Address)
	if err != nil {
		return fmt.Errorf("listen for the API: %w", err)
	}

	listening := &http.Server{
		Handler: handler, ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout,
		IdleTimeout: idleTimeout, ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}

	if c.TLSCertFile != "" {
		watcher, err := certwatcher.New(c.TLSCertFile, c.TLSKeyFile)
		if err != nil {
			return errors.Join(fmt.Errorf("read server.tls_cert_file: %w", err), listener.Close())
		}

		go func() {
			if err := watcher.Start(ctx); err != nil {
				logger.Error("the certificate is not watched any more", slog.Any("error", err))
			}
		}()

		listener = tls.NewListener(listener, &tls.Config{
			MinVersion: tls.VersionTLS12, GetCertificate: watcher.GetCertificate, NextProtos: []string{"h2", "http/1.1"},
		})
	}

	ended := make(chan error, 1)

	go func() { ended <- listening.Serve(listener) }()

	logger.Info("the fleet API listens", slog.String("address", listener.Addr().String()))

	select {
	case err := <-ended:
		return fmt.Errorf("serve the API: %w", err)
	case <-ctx.Done():
	}

	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()

	if err := listening.Shutdown(stopping); err != nil {
		return errors.Join(fmt.Errorf("let requests end: %w", err), listening.Close())
	}

	logger.Info("the fleet API has ended")

	return nil
}
