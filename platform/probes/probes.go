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
	// checkTimeout is less than the timeout of the probes in our manifests, 5 seconds, so that the response names
	// the cause.
	checkTimeout = 4500 * time.Millisecond
)

// Options configure Listen.
type Options struct {
	// HealthAddress is where /healthz, /readyz and Extra are served. If it is empty or "0", they
	// are not served.
	HealthAddress string
	// MetricsAddress is where /metrics is served. If it is empty or "0", it is not served.
	MetricsAddress string
	// CheckLive and CheckReady return why the program is not live or not ready. A nil function
	// means that the check always succeeds.
	CheckLive, CheckReady func(context.Context) error
	// DescribeReady, if set, returns what is unusual about a program that is ready. /readyz shows it.
	DescribeReady func() string
	// Extra has more handlers for HealthAddress, by their pattern ("GET /config").
	Extra map[string]http.Handler
	// Gatherer collects the metrics. Default: prometheus.DefaultGatherer.
	Gatherer prometheus.Gatherer
	// Log is the logger. Default: slog.Default.
	Log *slog.Logger
}

// Server serves the endpoints of Options.
type Server struct {
	log     *slog.Logger
	servers []*http.Server
	serving sync.WaitGroup
	// HealthAddress and MetricsAddress are the addresses that the server listens on. An address
	// that is not served is empty.
	HealthAddress, MetricsAddress string
}

// Listen binds the addresses and serves in the background until Close. It returns an error if it
// cannot bind an address.
func Listen(ctx context.Context, options Options) (*Server, error) {
	options.Log = cmp.Or(options.Log, slog.Default())
	options.Gatherer = cmp.Or(options.Gatherer, prometheus.DefaultGatherer)

	s := &Server{log: options.Log}

	health := http.NewServeMux()
	health.Handle("GET /healthz", newCheckHandler(options.CheckLive, nil))
	health.Handle("GET /readyz", newCheckHandler(options.CheckReady, options.DescribeReady))

	for pattern, handler := range options.Extra {
		health.Handle(pattern, handler)
	}

	metrics := http.NewServeMux()
	metrics.Handle("GET /metrics", promhttp.HandlerFor(options.Gatherer, promhttp.HandlerOpts{}))

	var err error
	if s.HealthAddress, err = s.listen(ctx, "health", options.HealthAddress, health); err != nil {
		return nil, err
	}

	if s.MetricsAddress, err = s.listen(ctx, "metrics", options.MetricsAddress, metrics); err != nil {
		return nil, errors.Join(err, s.Close(ctx))
	}

	return s, nil
}

func (s *Server) listen(ctx context.Context, name, address string, handler http.Handler) (string, error) {
	if address == "" || address == "0" {
		return "", nil
	}

	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return "", fmt.Errorf("listen for %s: %w", name, err)
	}

	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: readTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	s.servers = append(s.servers, server)

	s.serving.Go(func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("health or metrics server stopped", "server", name, "error", err)
		}
	})

	return listener.Addr().String(), nil
}

// Close stops the server. It waits for running requests, but not longer than stopTimeout.
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

	s.serving.Wait()

	return nil
}

// newCheckHandler returns a handler that responds with 200 if probe succeeds or is nil. Otherwise
// it responds with 503 and the error of probe. If describe is not nil, its text follows the response 200.
func newCheckHandler(probe func(context.Context) error, describe func() string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), checkTimeout)
		defer cancel()

		if probe != nil {
			if err := probe(ctx); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)

				return
			}
		}

		fmt.Fprintln(w, "ok")

		if describe != nil {
			fmt.Fprint(w, describe())
		}
	})
}
