// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package probes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	readTimeout  = 10 * time.Second
	writeTimeout = 30 * time.Second
	stopTimeout  = 5 * time.Second
	checkTimeout = 5 * time.Second
)

// Options of Listen.
type Options struct {
	// HealthAddress serves /healthz, /readyz and Extra. Empty or "0": not served.
	HealthAddress string
	// MetricsAddress serves /metrics. Empty or "0": not served.
	MetricsAddress string
	// Live and Ready say why not; nil means always.
	Live, Ready func(context.Context) error
	// Extra are further handlers on HealthAddress by their pattern ("GET /config").
	Extra map[string]http.Handler
	// Gatherer of the metrics. Default: prometheus.DefaultGatherer.
	Gatherer prometheus.Gatherer
	// Log. Default: slog.Default.
	Log *slog.Logger
}

// Server is what listens.
type Server struct {
	log     *slog.Logger
	servers []*http.Server
	ended   sync.WaitGroup
	// Health and Metrics are the addresses that are listened on; empty if not.
	Health, Metrics string
}

// Listen binds the addresses and serves until Close. An address that can't be bound is
// an error at once.
func Listen(ctx context.Context, options Options) (*Server, error) {
	options.Log = cmp.Or(options.Log, slog.Default())
	options.Gatherer = cmp.Or(options.Gatherer, prometheus.DefaultGatherer)

	s := &Server{log: options.Log}

	health := http.NewServeMux()
	health.Handle("GET /healthz", check(options.Live))
	health.Handle("GET /readyz", check(options.Ready))

	for pattern, handler := range options.Extra {
		health.Handle(pattern, handler)
	}

	metrics := http.NewServeMux()
	metrics.Handle("GET /metrics", promhttp.HandlerFor(options.Gatherer, promhttp.HandlerOpts{}))

	var err error
	if s.Health, err = s.listen(ctx, "health", options.HealthAddress, health); err != nil {
		return nil, err
	}

	if s.Metrics, err = s.listen(ctx, "metrics", options.MetricsAddress, metrics); err != nil {
		return nil, errors.Join(err, s.Close(ctx))
	}

	return s, nil
}

func (s *Server) listen(ctx context.Context, what, address string, handler http.Handler) (string, error) {
	if address == "" || address == "0" {
		return "", nil
	}

	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return "", fmt.Errorf("listen for %s: %w", what, err)
	}

	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: readTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	s.servers = append(s.servers, server)

	s.ended.Go(func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("server ended", "server", what, "error", err)
		}
	})

	return listener.Addr().String(), nil
}

// Close lets open requests end, for a few seconds at most.
func (s *Server) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()

	var errs []error
	for _, server := range s.servers {
		errs = append(errs, server.Shutdown(ctx))
	}

	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("stop health and metrics servers: %w", err)
	}

	s.ended.Wait()

	return nil
}

// check answers 200 or, with the reason, 503.
func check(ask func(context.Context) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), checkTimeout)
		defer cancel()

		if ask != nil {
			if err := ask(ctx); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)

				return
			}
		}

		fmt.Fprintln(w, "ok")
	})
}
