// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package forgesim

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
)

// simulator is what the simulators of all platforms have.
type simulator interface {
	Handler() http.Handler
	Control() http.Handler
	Violations() []control.Violation
	Close()
}

// common are the flags that the commands of all simulators have.
type common struct {
	listen, control, webhookURL, webhookSecretFile, faults string
	seed                                                   uint64
	exports                                                bool

	log *slog.Logger
}

// texts are where the help of the common flags differs.
type texts struct {
	listen, control       string // default addresses
	api, secret, injected string // what listens, what the secret is, examples of faults
}

// flagSet makes the flags of a command out of the common ones, to which the caller adds
// its own.
func (c *common) flagSet(command string, say texts, stderr io.Writer) *flag.FlagSet {
	c.log = slog.New(slog.NewTextHandler(stderr, nil))
	set := flag.NewFlagSet("forgesim "+command, flag.ContinueOnError)
	set.SetOutput(stderr)
	set.StringVar(&c.listen, "listen", say.listen, say.api+"; port 0 picks one")
	set.StringVar(&c.control, "control", say.control, "address of the control API; must be loopback")
	set.StringVar(&c.webhookURL, "webhook-url", "", "where webhooks go")
	set.StringVar(&c.webhookSecretFile, "webhook-secret-file", "", "file with "+say.secret)
	set.StringVar(&c.faults, "faults", "", "faults to inject, such as "+say.injected)
	set.Uint64Var(&c.seed, "seed", 1, "seed of faults and choices")
	set.BoolVar(&c.exports, "E", false, "print shell exports with the addresses once ready")
	return set
}

// parse reads flags alone: the commands take no arguments.
func parse(set *flag.FlagSet, args []string) error {
	if err := set.Parse(args); err != nil {
		return err
	}
	if set.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", set.Arg(0))
	}
	return nil
}

// read gives what the common flags say of faults and webhooks.
func (c *common) read() (control.Faults, control.WebhookTarget, error) {
	target := control.WebhookTarget{URL: c.webhookURL}
	faults, err := parseFaults(c.faults)
	if err == nil {
		target.Secret, err = readSecret(c.webhookSecretFile, "")
	}
	return faults, target, err
}

// readSecret reads a file that holds one secret; without a file it is the fallback.
func readSecret(file, fallback string) (string, error) {
	if file == "" {
		return fallback, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read secret: %w", err)
	}
	secret := strings.TrimSpace(string(text))
	if secret == "" {
		return "", fmt.Errorf("read secret: %s is empty", file)
	}
	return secret, nil
}

// site is one simulator that is ready to be served.
type site struct {
	common

	sim  simulator
	name string // of the platform, for people
	path string // of the API below its address, for people
	// serves is who calls, in error texts; default "the API".
	serves string
	// begin hears the API's URL before anything is served, and gives the variables
	// NAME=VALUE that -E tells.
	begin func(api string) []string
}

// runSite starts a simulator and serves it until ctx ends.
func runSite(
	ctx context.Context, start func(args []string, stderr io.Writer) (*site, error), args []string, stdout, stderr io.Writer,
) int {
	at, err := start(args, stderr)
	if err != nil {
		return report(stderr, err)
	}
	defer at.sim.Close()
	if err := at.serve(ctx, stdout, stderr); err != nil {
		return report(stderr, err)
	}
	if broken := at.sim.Violations(); len(broken) > 0 {
		printf(stderr, "forgesim: %d contract violations, the first: %+v\n", len(broken), broken[0])
		return exitViolation
	}
	return exitOK
}

// serve runs both listeners until ctx ends.
func (s *site) serve(ctx context.Context, stdout, stderr io.Writer) error {
	var config net.ListenConfig
	api, err := config.Listen(ctx, "tcp", s.listen)
	if err != nil {
		return fmt.Errorf("listen for %s: %w", cmp.Or(s.serves, "the API"), err)
	}
	defer func() { _ = api.Close() }()
	ctl, err := config.Listen(ctx, "tcp", s.control)
	if err != nil {
		return fmt.Errorf("listen for control: %w", err)
	}
	defer func() { _ = ctl.Close() }()
	if addr, ok := ctl.Addr().(*net.TCPAddr); !ok || !addr.IP.IsLoopback() {
		return fmt.Errorf("listen for control: %s is not a loopback address", ctl.Addr())
	}
	environment := s.begin("http://" + api.Addr().String())
	failed := make(chan error, 2)
	servers := []*http.Server{
		{Handler: s.sim.Handler(), ReadHeaderTimeout: 10 * time.Second},
		{Handler: s.sim.Control(), ReadHeaderTimeout: 10 * time.Second},
	}
	for i, listener := range []net.Listener{api, ctl} {
		go func() { failed <- servers[i].Serve(listener) }()
	}
	printf(stderr, "forgesim: %s on http://%s%s, control on http://%s\n", s.name, api.Addr(), s.path, ctl.Addr())
	if s.exports {
		printf(stdout, "export FORGESIM_PID=%d\n", os.Getpid())
		printf(stdout, "export FORGESIM_CONTROL_URL=http://%s\n", ctl.Addr())
		for _, variable := range environment {
			printf(stdout, "export %s\n", variable)
		}
	}
	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	s.sim.Close() // ends held polls, so that Shutdown is quick
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	for _, server := range servers {
		_ = server.Shutdown(grace)
	}
	return err
}
