// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package forgesim

import (
	"context"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/github"
)

// installationID is the id of the one installation forgesim makes per owner,
// counted up from here.
const installationID = 50_000_001

// defaultPAT is the token when no --pat-file is given. It opens nothing but the simulator.
const defaultPAT = "ghp_simulatedpersonalaccesstoken0000000"

type flags struct {
	unlimited                                               bool
	listen, control, webhookURL, webhookSecretFile, patFile string
	appKeyFile, enterprise, faults                          string
	appID                                                   int64
	orgs, repos                                             list
	seed                                                    uint64
	exports                                                 bool
	pickup, lost                                            time.Duration
}

// list is a flag that may be given several times, or with commas.
type list []string

func (l *list) String() string { return strings.Join(*l, ",") }

func (l *list) Set(value string) error {
	for item := range strings.SplitSeq(value, ",") {
		if item = strings.TrimSpace(item); item != "" {
			*l = append(*l, item)
		}
	}
	return nil
}

func parseFlags(args []string, stderr io.Writer) (flags, error) {
	var f flags
	set := flag.NewFlagSet("forgesim github", flag.ContinueOnError)
	set.SetOutput(stderr)
	set.StringVar(&f.listen, "listen", "127.0.0.1:8480", "address of the API and the runner service; port 0 picks one")
	set.StringVar(&f.control, "control", "127.0.0.1:8481", "address of the control API; must be loopback")
	set.StringVar(&f.webhookURL, "webhook-url", "", "where webhooks go")
	set.StringVar(&f.webhookSecretFile, "webhook-secret-file", "", "file with the webhook secret")
	set.StringVar(&f.patFile, "pat-file", "", "file with the personal access token to accept")
	set.Int64Var(&f.appID, "app-id", 0, "id of a GitHub App")
	set.StringVar(&f.appKeyFile, "app-key-file", "", "PEM file with the App's private or public key")
	set.Var(&f.orgs, "org", "organisation; gets a repository ORG/demo unless --repo names one (repeatable)")
	set.Var(&f.repos, "repo", "repository OWNER/NAME (repeatable)")
	set.StringVar(&f.enterprise, "enterprise", "", "slug of an enterprise that holds all organisations")
	set.StringVar(&f.faults, "faults", "", "faults to inject, such as webhookLost=0.1,jitDelay=2s")
	set.Uint64Var(&f.seed, "seed", 1, "seed of faults and choices")
	set.DurationVar(&f.pickup, "pickup-timeout", 0, "an offered job returns to the queue after this (default 1m)")
	set.BoolVar(&f.unlimited, "no-rate-limits", false, "answer any number of calls, as GitHub Enterprise Server does by default")
	set.DurationVar(&f.lost, "lost-timeout", 0, "a running job of a silent runner fails after this (default 10m)")
	set.BoolVar(&f.exports, "E", false, "print shell exports with the addresses once ready")
	if err := set.Parse(args); err != nil {
		return f, err //nolint:wrapcheck // flag has printed it
	}
	if set.NArg() > 0 {
		return f, fmt.Errorf("unexpected argument %q", set.Arg(0))
	}
	return f, nil
}

func runGitHub(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	f, err := parseFlags(args, stderr)
	if err != nil {
		return report(stderr, err)
	}
	opts, err := f.options()
	if err != nil {
		return report(stderr, err)
	}
	opts.Log = slog.New(slog.NewTextHandler(stderr, nil))
	sim, err := github.New(opts)
	if err != nil {
		return report(stderr, err)
	}
	defer sim.Close()
	if err := serve(ctx, sim, f, opts, stdout, stderr); err != nil {
		return report(stderr, err)
	}
	if broken := sim.Violations(); len(broken) > 0 {
		printf(stderr, "forgesim: %d contract violations, the first: %+v\n", len(broken), broken[0])
		return exitViolation
	}
	return exitOK
}

func (f *flags) options() (github.Options, error) {
	opts := github.Options{
		Enterprise: f.enterprise, Seed: f.seed, PickupTimeout: f.pickup, LostTimeout: f.lost, Unlimited: f.unlimited,
		Webhook: control.WebhookTarget{URL: f.webhookURL},
	}
	f.addRepos(&opts)
	var err error
	if opts.Faults, err = parseFaults(f.faults); err != nil {
		return opts, err
	}
	token := defaultPAT
	for file, into := range map[string]*string{f.patFile: &token, f.webhookSecretFile: &opts.Webhook.Secret} {
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
	opts.PATs = []github.PAT{{Token: token, Scopes: []string{
		"repo", "admin:org", "admin:org_hook", "admin:repo_hook", "manage_runners:enterprise",
	}}}
	if (f.appID != 0) != (f.appKeyFile != "") {
		return opts, errors.New("--app-id and --app-key-file go together")
	}
	if f.appID != 0 {
		opts.App, err = f.app(opts.Repos)
	}
	return opts, err
}

func (f *flags) addRepos(opts *github.Options) {
	owners := map[string]bool{}
	for _, name := range f.repos {
		owner, _, _ := strings.Cut(name, "/")
		owners[owner] = true
		opts.Repos = append(opts.Repos, github.Repo{FullName: name, Private: true})
	}
	for _, org := range f.orgs {
		if !owners[org] {
			opts.Repos = append(opts.Repos, github.Repo{FullName: org + "/demo", Private: true})
		}
	}
	if len(opts.Repos) == 0 {
		opts.Repos = []github.Repo{{FullName: "octo-org/demo", Private: true}}
	}
}

// app installs the App on every owner with the rights runners need.
func (f *flags) app(repos []github.Repo) (*github.App, error) {
	key, err := readPublicKey(f.appKeyFile)
	if err != nil {
		return nil, err
	}
	app := &github.App{ID: f.appID, Slug: "hyperfleet", PublicKey: key}
	seen := map[string]bool{}
	for _, repo := range repos {
		owner, _, _ := strings.Cut(repo.FullName, "/")
		if seen[owner] {
			continue
		}
		seen[owner] = true
		app.Installations = append(app.Installations, github.Installation{
			ID: installationID + int64(len(app.Installations)), Account: owner,
			Permissions: map[string]string{
				"actions": "read", "administration": "write", "metadata": "read",
				"organization_self_hosted_runners": "write",
			},
		})
	}
	return app, nil
}

func readPublicKey(file string) (*rsa.PublicKey, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read App key: %w", err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("read App key: %s holds no PEM block", file)
	}
	if key, err := x509.ParsePKCS1PrivateKey(block.Bytes); err == nil {
		return &key.PublicKey, nil
	}
	if key, err := x509.ParsePKCS8PrivateKey(block.Bytes); err == nil {
		if private, ok := key.(*rsa.PrivateKey); ok {
			return &private.PublicKey, nil
		}
	}
	if key, err := x509.ParsePKIXPublicKey(block.Bytes); err == nil {
		if public, ok := key.(*rsa.PublicKey); ok {
			return public, nil
		}
	}
	return nil, fmt.Errorf("read App key: %s holds no RSA key (PKCS#1, PKCS#8 or PKIX)", file)
}

// serve runs both listeners until ctx ends.
func serve(ctx context.Context, sim *github.Server, f flags, opts github.Options, stdout, stderr io.Writer) error {
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
	printf(stderr, "forgesim: GitHub on http://%s, control on http://%s\n", api.Addr(), ctl.Addr())
	if f.exports {
		printExports(stdout, api.Addr(), ctl.Addr(), opts)
	}
	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	sim.Close() // ends held polls, so that Shutdown is quick
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	for _, server := range servers {
		_ = server.Shutdown(grace)
	}
	return err
}

func printExports(w io.Writer, api, ctl net.Addr, opts github.Options) {
	printf(w, "export FORGESIM_PID=%d\n", os.Getpid())
	printf(w, "export FORGESIM_CONTROL_URL=http://%s\n", ctl)
	printf(w, "export GITHUB_API_URL=http://%s\n", api)
	printf(w, "export GITHUB_SERVER_URL=http://%s\n", api)
	printf(w, "export GITHUB_TOKEN=%s\n", opts.PATs[0].Token)
	if opts.App != nil {
		printf(w, "export GITHUB_APP_ID=%s\n", strconv.FormatInt(opts.App.ID, 10))
		printf(w, "export GITHUB_APP_INSTALLATION_ID=%d\n", opts.App.Installations[0].ID)
	}
	printf(w, "export GITHUB_REPOSITORY=%s\n", opts.Repos[0].FullName)
}
