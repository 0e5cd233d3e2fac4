// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package brokers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/hyperfleet/hyperfleet/kit/procrun"
	"github.com/hyperfleet/hyperfleet/test/loopback"
)

// What tells the test binary that it is a NATS server.
const (
	envConf = "HYPERFLEETTEST_NATS_CONF"
	envMain = "HYPERFLEETTEST_NATS_MAIN"
)

var errNotReady = errors.New("NATS is not ready")

// Main runs the tests, or the NATS server that one of them started. It gives the exit
// code.
func Main(tests func() int) int {
	if os.Getenv(envConf) != "" {
		if err := serve(); err != nil {
			fmt.Fprintln(os.Stderr, err)

			return 1
		}

		return 0
	}

	// Tests of this binary may start servers.
	if err := os.Setenv(envMain, strconv.Itoa(os.Getpid())); err != nil {
		return 1
	}

	return tests()
}

// serve is a NATS server until SIGTERM.
func serve() error {
	options, err := server.ProcessConfigFile(os.Getenv(envConf))
	if err != nil {
		return fmt.Errorf("%s: %w", envConf, err)
	}

	options.NoSigs, options.DisableJetStreamBanner = true, true

	instance, err := server.NewServer(options)
	if err != nil {
		return fmt.Errorf("make NATS server: %w", err)
	}

	instance.ConfigureLogger()
	instance.Start()

	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)

	<-ended
	instance.Shutdown()
	instance.WaitForShutdown()

	return nil
}

// StartNATS starts a NATS server with JetStream on files. The test binary's TestMain has
// to be Main.
func StartNATS(t testing.TB, setup ...Setup) *Server {
	t.Helper()

	if os.Getenv(envMain) != strconv.Itoa(os.Getpid()) {
		t.Fatal("start NATS: have TestMain call brokers.Main")
	}

	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}

	return begin(t, func() *Server {
		dir, port := shortDir(t), loopback.Port(t)
		conf, data := filepath.Join(dir, "conf"), filepath.Join(dir, "data")
		configure := func(s Setup) { write(t, conf, s.nats(port, data)) }
		configure(one(setup))

		url := "nats://" + local(port)
		ready := func(ctx context.Context) error { return natsReady(ctx, url) }

		if !one(setup).open() {
			// It listens when JetStream is there.
			ready = func(ctx context.Context) error { return listens(ctx, local(port)) }
		}

		return &Server{
			URL: url, Address: local(port), name: "NATS", data: data, setup: configure, ready: ready,
			start: func(ctx context.Context) (*procrun.Process, error) {
				return procrun.Start(ctx, procrun.Spec{
					Name: "nats", Path: self, Dir: dir, LogPath: filepath.Join(dir, "log"), Grace: grace,
					Env: append(os.Environ(), envConf+"="+conf),
				})
			},
		}
	})
}

// natsReady says whether JetStream answers.
func natsReady(ctx context.Context, url string) error {
	conn, err := nats.Connect(url, nats.Timeout(dialTimeout))
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close()

	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()

	if _, err := conn.RequestWithContext(ctx, "$JS.API.INFO", nil); err != nil {
		return errors.Join(errNotReady, err)
	}

	return nil
}
