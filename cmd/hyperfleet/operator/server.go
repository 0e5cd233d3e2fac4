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
	"sync/atomic"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/certwatcher"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
)

const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 30 * time.Second
	writeTimeout      = 2 * time.Minute // a machine on a slow line downloads the bootstrap service
	idleTimeout       = 2 * time.Minute
	drainTimeout      = 10 * time.Second
)

// server is what CI platforms and machines call. It is a manager.Runnable that every
// replica runs: what it is told goes to the API server, not to the leader.
type server struct {
	cfg     config.Webhooks
	handler http.Handler
	log     *slog.Logger
	// authority signs what is shown, where there is no CertFile; nil if none does.
	authority *authority

	listening atomic.Bool
}

var errNotListening = errors.New("webhooks and machines are not listened for yet")

// ready tells whether CI platforms and machines are heard.
func (s *server) ready(*http.Request) error {
	if s.cfg.BindAddress != "0" && !s.listening.Load() {
		return errNotListening
	}

	return nil
}

// NeedLeaderElection says that every replica serves.
func (s *server) NeedLeaderElection() bool { return false }

// Start serves until the context ends, and then lets open requests end.
func (s *server) Start(ctx context.Context) error {
	if s.cfg.BindAddress == "0" {
		<-ctx.Done()

		return nil
	}

	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.cfg.BindAddress)
	if err != nil {
		return fmt.Errorf("listen for webhooks: %w", err)
	}

	srv := &http.Server{
		Handler:           s.handler,
		ReadHeaderTimeout: readHeaderTimeout, ReadTimeout: readTimeout,
		WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	ended := make(chan error, 1)

	if srv.TLSConfig, err = s.certificate(ctx); err != nil {
		return errors.Join(err, listener.Close())
	}

	secure := srv.TLSConfig != nil // Serve writes it

	go func() {
		if secure {
			ended <- srv.ServeTLS(listener, "", "")
		} else {
			ended <- srv.Serve(listener)
		}
	}()

	s.listening.Store(true)
	s.log.InfoContext(ctx, "webhook server listens", "address", listener.Addr().String(), "tls", secure)

	select {
	case err := <-ended:
		return fmt.Errorf("serve webhooks: %w", err)
	case <-ctx.Done():
	}

	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()

	if err := srv.Shutdown(drain); err != nil {
		return fmt.Errorf("stop webhook server: %w", err)
	}

	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve webhooks: %w", err)
	}

	return nil
}

// certificate is what the server shows: that of its files, which are read again when they
// change, or its authority's. Nil where it serves in the clear.
func (s *server) certificate(ctx context.Context) (*tls.Config, error) {
	switch {
	case s.cfg.CertFile != "":
	case s.authority != nil:
		return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: s.authority.show}, nil
	default:
		return nil, nil //nolint:nilnil // there is none
	}

	watcher, err := certwatcher.New(s.cfg.CertFile, s.cfg.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("read webhooks.certFile: %w", err)
	}

	go func() {
		if err := watcher.Start(ctx); err != nil {
			s.log.ErrorContext(ctx, "the certificate is not watched any more", "error", err)
		}
	}()

	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: watcher.GetCertificate}, nil
}
