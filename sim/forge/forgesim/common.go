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

// simulator is implemented by the simulators of all platforms.
type simulator interface {
	Handler() http.Handler
	Control() http.Handler
	Violations() []control.Violation
	Close()
}

// common holds the flags that the commands of all simulators have.
type common struct {
	listen, control, webhookURL, webhookSecretFile, faults string
	seed                                                   uint64
	exports                                                bool

	log *slog.Logger
}

// flagTexts holds the parts of the help of the common flags that differ between the commands.
type flagTexts struct {
	listen, control       string // default addresses
	api, secret, injected string // what listens, what the secret is, examples of faults
}

// newFlagSet returns the flag set of a command with the common flags. The caller adds the flags of
// the command.
func (c *common) newFlagSet(command string, help flagTexts, stderr io.Writer) *flag.FlagSet {
	c.log = slog.New(slog.NewTextHandler(stderr, nil))
	set := flag.NewFlagSet("forgesim "+command, flag.ContinueOnError)
	set.SetOutput(stderr)
	set.StringVar(&c.listen, "listen", help.listen, help.api+"; port 0 picks one")
	set.StringVar(&c.control, "control", help.control, "address of the control API; must be loopback")
	set.StringVar(&c.webhookURL, "webhook-url", "", "URL that webhooks are sent to")
	set.StringVar(&c.webhookSecretFile, "webhook-secret-file", "", "file with "+help.secret)
	set.StringVar(&c.faults, "faults", "", "faults to inject, such as "+help.injected)
	set.Uint64Var(&c.seed, "seed", 1, "seed of the random source for faults and for the choice of runners")
	set.BoolVar(&c.exports, "E", false, "print shell exports with the addresses when the simulator is ready")
	return set
}

// parseFlags parses the flags, and returns an error if there are other arguments.
func parseFlags(set *flag.FlagSet, args []string) error {
	if err := set.Parse(args); err != nil {
		return err
	}
	if set.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", set.Arg(0))
	}
	return nil
}

// readFaultsAndWebhook returns the faults and the webhook target of the common flags.
func (c *common) readFaultsAndWebhook() (control.Faults, control.WebhookTarget, error) {
	target := control.WebhookTarget{URL: c.webhookURL}
	faults, err := parseFaults(c.faults)
	if err == nil {
		target.Secret, err = readSecret(c.webhookSecretFile, "")
	}
	return faults, target, err
}

// readSecret reads a file that holds one secret. If file is empty, it returns the fallback.
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

// instance is one simulator that is ready to be served.
type instance struct {
	common

	sim  simulator
	name string // name of the platform, for messages
	path string // path of the API below its address, for messages
	// callers is who calls the simulator, for error texts; default "the API".
	callers string
	// prepare is called with the URL of the API before the simulator is served. It returns the
	// variables NAME=VALUE that -E prints.
	prepare func(api string) []string
}

// runSite starts a simulator and serves it until ctx ends.
func runSite(
	ctx context.Context, start func(args []string, stderr io.Writer) (*instance, error), args []string, stdout, stderr io.Writer,
) int {
	inst, err := start(args, stderr)
	if err != nil {
		return reportError(stderr, err)
	}
	defer inst.sim.Close()
	if err := inst.serve(ctx, stdout, stderr); err != nil {
		return reportError(stderr, err)
	}
	if violations := inst.sim.Violations(); len(violations) > 0 {
		printf(stderr, "forgesim: %d contract violations, the first: %+v\n", len(violations), violations[0])
		return exitViolation
	}
	return exitOK
}

// serve serves the API and the control API until ctx ends.
func (s *instance) serve(ctx context.Context, stdout, stderr io.Writer) error {
	var config net.ListenConfig
	api, err := config.Listen(ctx, "tcp", s.listen)
	if err != nil {
		return fmt.Errorf("listen for %s: %w", cmp.Or(s.callers, "the API"), err)
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
	environment := s.prepare("http://" + api.Addr().String())
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
	s.sim.Close() // ends the open polls, so that Shutdown is quick
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	for _, server := range servers {
		_ = server.Shutdown(grace)
	}
	return err
}
