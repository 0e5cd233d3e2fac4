// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package forgesim

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/buildkite"
	"github.com/hyperfleet/hyperfleet/sim/buildkite/simagent"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
)

// defaultClusterToken is the agent token when no --token-file is given. It opens nothing
// but the simulator.
const defaultClusterToken = "bkct_simulatedclusteragenttoken0000000"

type buildkiteFlags struct {
	listen, control, webhookURL, webhookSecretFile, tokenFile string
	organization, faults                                      string
	queues                                                    list
	seed                                                      uint64
	exports, plainToken                                       bool
	lost                                                      time.Duration
}

func parseBuildkite(args []string, stderr io.Writer) (buildkiteFlags, error) {
	var f buildkiteFlags
	set := flag.NewFlagSet("forgesim buildkite", flag.ContinueOnError)
	set.SetOutput(stderr)
	set.StringVar(&f.listen, "listen", "127.0.0.1:8480", "address of the agent API; port 0 picks one")
	set.StringVar(&f.control, "control", "127.0.0.1:8481", "address of the control API; must be loopback")
	set.StringVar(&f.webhookURL, "webhook-url", "", "where webhooks go")
	set.StringVar(&f.webhookSecretFile, "webhook-secret-file", "", "file with the webhook token")
	set.BoolVar(&f.plainToken, "webhook-plain-token", false, "send the webhook token itself in place of a signature")
	set.StringVar(&f.tokenFile, "token-file", "", "file with the cluster's agent token")
	set.StringVar(&f.organization, "organization", "acme", "slug of the organization; its pipelines are made as jobs name them")
	set.Var(&f.queues, "queue", "key of a queue, the default queue first (repeatable; default: default)")
	set.StringVar(&f.faults, "faults", "", "faults to inject, such as webhookLost=0.1,jitDelay=2s")
	set.Uint64Var(&f.seed, "seed", 1, "seed of faults and choices")
	set.DurationVar(&f.lost, "lost-timeout", 0, "a running job of a silent agent fails after this (default 3m)")
	set.BoolVar(&f.exports, "E", false, "print shell exports with the addresses once ready")
	if err := set.Parse(args); err != nil {
		return f, err //nolint:wrapcheck // flag has printed it
	}
	if set.NArg() > 0 {
		return f, fmt.Errorf("unexpected argument %q", set.Arg(0))
	}
	return f, nil
}

func (f *buildkiteFlags) options() (buildkite.Options, error) {
	opts := buildkite.Options{
		Organization: f.organization, Queues: f.queues, Seed: f.seed, LostTimeout: f.lost, PlainToken: f.plainToken,
		Webhook: control.WebhookTarget{URL: f.webhookURL},
	}
	var err error
	if opts.Faults, err = parseFaults(f.faults); err != nil {
		return opts, err
	}
	token := defaultClusterToken
	for file, into := range map[string]*string{f.tokenFile: &token, f.webhookSecretFile: &opts.Webhook.Secret} {
		if file == "" {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return opts, fmt.Errorf("read secret: %w", err)
		}
		if *into = strings.TrimSpace(string(text)); *into == "" {
			return opts, fmt.Errorf("read secret: %s is empty", file)
		}
	}
	opts.Tokens = []string{token}
	return opts, nil
}

func runBuildkite(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	f, err := parseBuildkite(args, stderr)
	if err != nil {
		return report(stderr, err)
	}
	opts, err := f.options()
	if err != nil {
		return report(stderr, err)
	}
	opts.Log = slog.New(slog.NewTextHandler(stderr, nil))
	sim, err := buildkite.New(opts)
	if err != nil {
		return report(stderr, err)
	}
	defer sim.Close()
	if err := serveBuildkite(ctx, sim, f, opts, stdout, stderr); err != nil {
		return report(stderr, err)
	}
	if broken := sim.Violations(); len(broken) > 0 {
		printf(stderr, "forgesim: %d contract violations, the first: %+v\n", len(broken), broken[0])
		return exitViolation
	}
	return exitOK
}

// serveBuildkite runs both listeners until ctx ends.
func serveBuildkite(
	ctx context.Context, sim *buildkite.Server, f buildkiteFlags, opts buildkite.Options, stdout, stderr io.Writer,
) error {
	var config net.ListenConfig
	api, err := config.Listen(ctx, "tcp", f.listen)
	if err != nil {
		return fmt.Errorf("listen for the API: %w", err)
	}
	defer func() { _ = api.Close() }()
	ctl, err := config.Listen(ctx, "tcp", f.control)
	if err != nil {
		return fmt.Errorf("listen for control: %w", err)
	}
	defer func() { _ = ctl.Close() }()
	if addr, ok := ctl.Addr().(*net.TCPAddr); !ok || !addr.IP.IsLoopback() {
		return fmt.Errorf("listen for control: %s is not a loopback address", ctl.Addr())
	}
	failed := make(chan error, 2)
	servers := []*http.Server{
		{Handler: sim.Handler(), ReadHeaderTimeout: 10 * time.Second},
		{Handler: sim.Control(), ReadHeaderTimeout: 10 * time.Second},
	}
	for i, listener := range []net.Listener{api, ctl} {
		go func() { failed <- servers[i].Serve(listener) }()
	}
	printf(stderr, "forgesim: Buildkite on http://%s/v3, control on http://%s\n", api.Addr(), ctl.Addr())
	if f.exports {
		printf(stdout, "export FORGESIM_PID=%d\n", os.Getpid())
		printf(stdout, "export FORGESIM_CONTROL_URL=http://%s\n", ctl.Addr())
		printf(stdout, "export BUILDKITE_AGENT_ENDPOINT=http://%s/v3\n", api.Addr())
		printf(stdout, "export BUILDKITE_AGENT_TOKEN=%s\n", opts.Tokens[0])
		printf(stdout, "export BUILDKITE_ORGANIZATION_SLUG=%s\n", f.organization)
	}
	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	for _, server := range servers {
		_ = server.Shutdown(grace)
	}
	return err
}

// runBuildkiteAgent is the stand-in for buildkite-agent. SIGQUIT cancels its job; the
// signals that end ctx let it finish.
func runBuildkiteAgent(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	quit, abort := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(quit, syscall.SIGQUIT)
	defer signal.Stop(quit)
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-quit:
			close(abort)
		case <-done:
		}
	}()
	program := simagent.Program{Stdout: stdout, Stderr: stderr, Getenv: os.Getenv, Abort: abort}
	return program.Main(ctx, args)
}

// buildkiteAgentScript starts the stand-in out of the image that it lies in, wherever that
// was copied to.
const buildkiteAgentScript = `#!/bin/sh
# Stand-in for buildkite-agent.
root=$(cd "$(dirname "$0")/../.." && pwd) || exit 1
exec "$root/opt/actions-runner/bin/Runner.Listener" buildkite-agent "$@"
`

// layBuildkiteAgent writes usr/bin/buildkite-agent below root, beside the runner of
// simrunner.Layout, whose program it shares.
func layBuildkiteAgent(root string) error {
	path := filepath.Join(root, "usr", "bin", "buildkite-agent")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("lay out buildkite-agent: %w", err)
	}
	if err := os.WriteFile(path, []byte(buildkiteAgentScript), 0o755); err != nil {
		return fmt.Errorf("lay out buildkite-agent: %w", err)
	}
	return nil
}
