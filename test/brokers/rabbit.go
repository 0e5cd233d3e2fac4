// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package brokers

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hyperfleet/hyperfleet/kit/procrun"
	"github.com/hyperfleet/hyperfleet/test/loopback"
)

const (
	// rabbitProgram is the server itself; the one in the PATH of Debian's package changes
	// users first.
	rabbitProgram = "/usr/lib/rabbitmq/bin/rabbitmq-server"
	rabbitPackage = "install rabbitmq-server"

	definitionsFile = "definitions.json"
)

// StartRabbitMQ starts a RabbitMQ server with the vhost /, and user and password guest if
// the setup has no others.
func StartRabbitMQ(t testing.TB, setup ...Setup) *Server {
	t.Helper()

	program := rabbitProgram
	if _, err := os.Stat(program); err != nil {
		found, err := exec.LookPath("rabbitmq-server")
		if err != nil {
			t.Fatalf("find RabbitMQ: %v (%s)", err, rabbitPackage)
		}

		program = found
	}

	return begin(t, func() *Server {
		node := &rabbitNode{program: program, dir: shortDir(t), port: loopback.Port(t), dist: loopback.Port(t), epmd: loopback.Port(t)}
		node.startEPMD(t)
		node.write(t, one(setup))

		server := &Server{
			URL: "amqp://guest:guest@" + local(node.port) + "/", Address: local(node.port), name: "RabbitMQ", node: node,
			start: node.start,
		}

		switch {
		case one(setup).Cert != nil:
			server.URL = "amqps://" + local(node.port) + "/"
		case len(one(setup).Users) > 0:
			server.URL = "amqp://" + local(node.port) + "/"
		}

		server.ready = func(ctx context.Context) error {
			if !one(setup).open() {
				return listens(ctx, server.Address)
			}

			conn, err := amqp.DialConfig(server.URL, amqp.Config{Dial: amqp.DefaultDial(dialTimeout)})
			if err != nil {
				return fmt.Errorf("connect: %w", err)
			}

			return conn.Close()
		}

		return server
	})
}

type rabbitNode struct {
	program, dir     string
	port, dist, epmd int
}

func (n *rabbitNode) name() string { return "t" + strconv.Itoa(n.port) + "@localhost" }

// startEPMD starts Erlang's port mapper, which the node would else leave running.
func (n *rabbitNode) startEPMD(t testing.TB) {
	t.Helper()

	path, err := exec.LookPath("epmd")
	if err != nil {
		t.Fatalf("find epmd: %v (%s)", err, rabbitPackage)
	}

	process, err := procrun.Start(context.Background(), procrun.Spec{
		Path: path, Args: []string{"-address", "127.0.0.1", "-port", strconv.Itoa(n.epmd)},
		Dir: n.dir, LogPath: filepath.Join(n.dir, "epmd.log"), Grace: grace,
	})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		if err := process.Kill(); err != nil {
			t.Error(err)
		}
	})
}

func (n *rabbitNode) write(t testing.TB, setup Setup) {
	t.Helper()

	if setup.Cert != nil {
		setup.Cert = n.own(t, setup.Cert)
	}

	definitions := filepath.Join(n.dir, definitionsFile)
	write(t, definitions, setup.definitions(t))
	write(t, filepath.Join(n.dir, "rabbitmq.conf"), setup.rabbit(n.port, definitions))
	write(t, filepath.Join(n.dir, "enabled_plugins"), "[rabbitmq_auth_mechanism_ssl].\n")
}

func (n *rabbitNode) start(ctx context.Context) (*procrun.Process, error) {
	in := func(name string) string { return filepath.Join(n.dir, name) }

	return procrun.Start(ctx, procrun.Spec{
		Name: "rabbitmq", Path: n.program, Dir: n.dir, LogPath: in("log"), Grace: grace,
		Env: append(os.Environ(),
			"HOME="+n.dir, "RABBITMQ_NODENAME="+n.name(), "RABBITMQ_CONFIG_FILE="+in("rabbitmq"),
			"RABBITMQ_MNESIA_BASE="+in("data"), "RABBITMQ_LOG_BASE="+in("logs"), "RABBITMQ_PID_FILE="+in("pid"),
			"RABBITMQ_ENABLED_PLUGINS_FILE="+in("enabled_plugins"), "RABBITMQ_DIST_PORT="+strconv.Itoa(n.dist),
			"ERL_EPMD_ADDRESS=127.0.0.1", "ERL_EPMD_PORT="+strconv.Itoa(n.epmd),
			// Its threads wait for work without turning round, which others need the processors for.
			`RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1} +sbwt none +sbwtdcpu none +sbwtdio none`,
		),
	})
}
