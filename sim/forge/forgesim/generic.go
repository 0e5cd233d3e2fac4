// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package forgesim

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/generic"
	"github.com/hyperfleet/hyperfleet/sim/generic/simjob"
)

type genericFlags struct {
	listen, control, webhookURL, webhookSecretFile, faults, sign string
	sources                                                      list
	seed                                                         uint64
	updates, exports                                             bool
}

func parseGenericFlags(args []string, stderr io.Writer) (genericFlags, error) {
	var f genericFlags
	set := flag.NewFlagSet("forgesim generic", flag.ContinueOnError)
	set.SetOutput(stderr)
	set.StringVar(&f.listen, "listen", "127.0.0.1:8486", "address that the jobs' commands call; port 0 picks one")
	set.StringVar(&f.control, "control", "127.0.0.1:8487", "address of the control API; must be loopback")
	set.StringVar(&f.webhookURL, "webhook-url", "", "where webhooks go")
	set.StringVar(&f.webhookSecretFile, "webhook-secret-file", "", "file with the webhook secret")
	set.StringVar(&f.sign, "signature", string(generic.SignStandard), "how webhooks are signed: standard or hub")
	set.BoolVar(&f.updates, "updates", false, "webhooks tell of jobs that run and are over as well")
	set.Var(&f.sources, "source", "source of jobs (repeatable; default demo)")
	set.StringVar(&f.faults, "faults", "", "faults to inject, such as webhookLost=0.1,serverError=0.1")
	set.Uint64Var(&f.seed, "seed", 1, "seed of faults and choices")
	set.BoolVar(&f.exports, "E", false, "print shell exports with the addresses once ready")
	if err := set.Parse(args); err != nil {
		return f, err //nolint:wrapcheck // flag has printed it
	}
	if set.NArg() > 0 {
		return f, fmt.Errorf("unexpected argument %q", set.Arg(0))
	}
	return f, nil
}

func runGeneric(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	f, err := parseGenericFlags(args, stderr)
	if err != nil {
		return report(stderr, err)
	}
	opts, err := f.options()
	if err != nil {
		return report(stderr, err)
	}
	opts.Log = slog.New(slog.NewTextHandler(stderr, nil))
	sim, err := generic.New(opts)
	if err != nil {
		return report(stderr, err)
	}
	defer sim.Close()
	if err := serveGeneric(ctx, sim, f, stdout, stderr); err != nil {
		return report(stderr, err)
	}
	if broken := sim.Violations(); len(broken) > 0 {
		printf(stderr, "forgesim: %d contract violations, the first: %+v\n", len(broken), broken[0])
		return exitViolation
	}
	return exitOK
}

func (f *genericFlags) options() (generic.Options, error) {
	opts := generic.Options{
		Sources: f.sources, Seed: f.seed, Sign: generic.Signature(f.sign), Updates: f.updates,
		Webhook: control.WebhookTarget{URL: f.webhookURL},
	}
	var err error
	if opts.Faults, err = parseFaults(f.faults); err != nil {
		return opts, err
	}
	if f.webhookSecretFile == "" {
		return opts, nil
	}
	text, err := os.ReadFile(f.webhookSecretFile)
	if err != nil {
		return opts, fmt.Errorf("read secret: %w", err)
	}
	if opts.Webhook.Secret = strings.TrimSpace(string(text)); opts.Webhook.Secret == "" {
		return opts, fmt.Errorf("read secret: %s is empty", f.webhookSecretFile)
	}
	return opts, nil
}

// serveGeneric runs both listeners until ctx ends.
func serveGeneric(ctx context.Context, sim *generic.Server, f genericFlags, stdout, stderr io.Writer) error {
	var config net.ListenConfig
	api, err := config.Listen(ctx, "tcp", f.listen)
	if err != nil {
		return fmt.Errorf("listen for commands: %w", err)
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
	sim.SetURL("http://" + api.Addr().String())
	failed := make(chan error, 2)
	servers := []*http.Server{
		{Handler: sim.Handler(), ReadHeaderTimeout: 10 * time.Second},
		{Handler: sim.Control(), ReadHeaderTimeout: 10 * time.Second},
	}
	for i, listener := range []net.Listener{api, ctl} {
		go func() { failed <- servers[i].Serve(listener) }()
	}
	printf(stderr, "forgesim: generic sender on http://%s, control on http://%s\n", api.Addr(), ctl.Addr())
	if f.exports {
		printf(stdout, "export FORGESIM_PID=%d\n", os.Getpid())
		printf(stdout, "export FORGESIM_CONTROL_URL=http://%s\n", ctl.Addr())
		printf(stdout, "export FORGESIM_JOBS_URL=http://%s\n", api.Addr())
	}
	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	sim.Close()
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	for _, server := range servers {
		_ = server.Shutdown(grace)
	}
	return err
}

// runGenericJob does the job of the environment, as the command of a generic pool does.
func runGenericJob(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 {
		report(stderr, errors.New("generic-job takes no arguments: its job is in the environment"))
		return exitUsage
	}
	host, err := os.Hostname()
	if err != nil {
		host = "" // only for people
	}
	program := simjob.Program{Stdout: stdout, Stderr: stderr, Getenv: os.Getenv, Host: host}
	return program.Main(ctx)
}

// genericJobScript starts the stand-in out of the image that it lies in, wherever that
// was copied to.
const genericJobScript = `#!/bin/sh
# Does one job of the simulated generic sender.
root=$(cd "$(dirname "$0")/../.." && pwd) || exit 1
exec "$root/opt/actions-runner/bin/Runner.Listener" generic-job "$@"
`

// layGenericJob writes usr/bin/generic-job below root, the command of a pool whose jobs
// the simulated sender has. It shares the program of simrunner.Layout.
func layGenericJob(root string) error {
	path := filepath.Join(root, "usr", "bin", "generic-job")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("lay out generic-job: %w", err)
	}
	if err := os.WriteFile(path, []byte(genericJobScript), 0o755); err != nil {
		return fmt.Errorf("lay out generic-job: %w", err)
	}
	return nil
}
