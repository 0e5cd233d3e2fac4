// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/kit/retry"
)

const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 30 * time.Second
	writeTimeout      = 2 * time.Minute // a machine on a slow line downloads the bootstrap service
	idleTimeout       = 2 * time.Minute
	// requestGrace is how long open requests may go on at the end of the process before their contexts end. After that,
	// they may still write what must not be lost, for retry.EndGrace. drainTimeout is longer than both together.
	requestGrace = 2 * time.Second
	drainTimeout = 8 * time.Second
)

// server serves the webhooks of CI platforms and the reports of machines. It is a manager.Runnable that every
// replica runs, because the handlers write what they receive to the API server and do not need the leader.
type server struct {
	cfg     config.Webhooks
	handler http.Handler
	log     *slog.Logger
	// authority signs the server certificate if webhooks.certFile is not set; nil if the operator does not
	// use its own CA.
	authority *authority

	isListening atomic.Bool
	// draining is the wait for open requests at the end.
	draining sync.WaitGroup
}

var errNotListening = errors.New("the webhook server is not listening yet")

// checkReady is a readiness check. It returns an error until the server listens.
func (s *server) checkReady(*http.Request) error {
	if s.cfg.BindAddress != "0" && !s.isListening.Load() {
		return errNotListening
	}

	return nil
}

// NeedLeaderElection returns false because every replica serves.
func (s *server) NeedLeaderElection() bool { return false }

// Start serves until ctx ends. It does not wait for open requests, because the manager stops its controllers only when
// Start has returned, and they need the same time to write their statuses. wait waits for the requests. If the bind
// address is "0", Start does not listen.
func (s *server) Start(ctx context.Context) error {
	if s.cfg.BindAddress == "0" {
		<-ctx.Done()

		return nil
	}

	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.cfg.BindAddress)
	if err != nil {
		return fmt.Errorf("listen for webhooks: %w", err)
	}

	requestCtx, cancelRequests := retry.WithGrace(ctx, requestGrace)

	srv := &http.Server{
		Handler:           s.handler,
		BaseContext:       func(net.Listener) context.Context { return requestCtx },
		ReadHeaderTimeout: readHeaderTimeout, ReadTimeout: readTimeout,
		WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: bounds.MaxRequestHeader, Protocols: new(http.Protocols),
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	// With HTTP/2, one connection could carry many requests at the same time, which the limits do not count.
	srv.Protocols.SetHTTP1(true)

	listener = s.limitConnections(ctx, listener)
	serveErr := make(chan error, 1)

	if srv.TLSConfig, err = s.tlsConfig(ctx); err != nil {
		cancelRequests()

		return errors.Join(err, listener.Close())
	}

	isSecure := srv.TLSConfig != nil // read before Serve, which changes the field

	go func() {
		if isSecure {
			serveErr <- srv.ServeTLS(listener, "", "")
		} else {
			serveErr <- srv.Serve(listener)
		}
	}()

	s.isListening.Store(true)
	s.log.InfoContext(ctx, "webhook server listens", "address", listener.Addr().String(), "tls", isSecure)

	select {
	case err := <-serveErr:
		cancelRequests()

		return fmt.Errorf("serve webhooks: %w", err)
	case <-ctx.Done():
	}

	s.draining.Go(func() {
		defer cancelRequests()

		drainCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
		defer cancel()

		if err := srv.Shutdown(drainCtx); err != nil {
			s.log.WarnContext(ctx, "requests were still open at the end", "after", drainTimeout, "error", err)
		}
	})

	return nil
}

// wait waits up to drainTimeout for the open requests of a server whose Start has returned.
func (s *server) wait() { s.draining.Wait() }

// limitConnections limits the connections of the listener, so that callers without credentials cannot use up the
// operator's memory. It logs refused connections, at most once a minute.
func (s *server) limitConnections(ctx context.Context, listener net.Listener) net.Listener {
	sometimes := rate.Sometimes{Interval: time.Minute}

	return bounds.LimitConnections(listener, bounds.MaxConnections, bounds.MaxConnectionsOfAddress, func(address string) {
		sometimes.Do(func() {
			s.log.WarnContext(ctx, "connections are refused, because too many are open", "address", address,
				"limit", bounds.MaxConnections, "limitOfAddress", bounds.MaxConnectionsOfAddress)
		})
	})
}

// tlsConfig returns the TLS configuration of the server. The certificate comes from webhooks.certFile, which
// is read again when it changes, or from the operator's own CA. It returns nil if the server serves plain
// HTTP.
func (s *server) tlsConfig(ctx context.Context) (*tls.Config, error) {
	switch {
	case s.cfg.CertFile != "":
	case s.authority != nil:
		return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: s.authority.getCertificate}, nil
	default:
		return nil, nil //nolint:nilnil // nil means plain HTTP
	}

	watcher, err := certwatcher.New(s.cfg.CertFile, s.cfg.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("read webhooks.certFile: %w", err)
	}

	go func() {
		if err := watcher.Start(ctx); err != nil {
			s.log.ErrorContext(ctx, "watch webhooks.certFile", "error", err)
		}
	}()

	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: watcher.GetCertificate}, nil
}
