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
	"github.com/hyperfleet/hyperfleet/sim/gitlab"
	gitlabrunner "github.com/hyperfleet/hyperfleet/sim/gitlab/simrunner"
)

// defaultGitLabToken is the access token when no --token-file is given. It opens nothing
// but the simulator.
const defaultGitLabToken = "glpat-simulatedaccesstoken"

type gitLabFlags struct {
	listen, control, webhookURL, webhookSecretFile, tokenFile string
	url, faults                                               string
	projects                                                  list
	seed                                                      uint64
	exports                                                   bool
	lost, timeout                                             time.Duration
}

func parseGitLab(args []string, stderr io.Writer) (gitLabFlags, error) {
	var f gitLabFlags
	set := flag.NewFlagSet("forgesim gitlab", flag.ContinueOnError)
	set.SetOutput(stderr)
	set.StringVar(&f.listen, "listen", "127.0.0.1:8480", "address of the instance; port 0 picks one")
	set.StringVar(&f.control, "control", "127.0.0.1:8481", "address of the control API; must be loopback")
	set.StringVar(&f.url, "url", "", "URL of the instance in links and webhooks (default: that of --listen)")
	set.StringVar(&f.webhookURL, "webhook-url", "", "where webhooks go")
	set.StringVar(&f.webhookSecretFile, "webhook-secret-file", "", "file with the webhooks' secret token or signing token (whsec_)")
	set.StringVar(&f.tokenFile, "token-file", "", "file with the access token to accept")
	set.Var(&f.projects, "project", "full path of a project, such as group/project (repeatable; default: gitlab-org/demo)")
	set.StringVar(&f.faults, "faults", "", "faults to inject, such as webhookLost=0.1,jitDelay=2s")
	set.Uint64Var(&f.seed, "seed", 1, "seed of faults and choices")
	set.DurationVar(&f.lost, "lost-timeout", 0, "a running job whose runner is silent fails after this (default 1h)")
	set.DurationVar(&f.timeout, "job-timeout", 0, "a job that runs for longer fails (default 1h)")
	set.BoolVar(&f.exports, "E", false, "print shell exports with the addresses once ready")
	if err := set.Parse(args); err != nil {
		return f, err //nolint:wrapcheck // flag has printed it
	}
	if set.NArg() > 0 {
		return f, fmt.Errorf("unexpected argument %q", set.Arg(0))
	}
	return f, nil
}

func (f *gitLabFlags) options() (gitlab.Options, error) {
	opts := gitlab.Options{
		Seed: f.seed, LostTimeout: f.lost, JobTimeout: f.timeout, Webhook: control.WebhookTarget{URL: f.webhookURL},
	}
	if len(f.projects) == 0 {
		f.projects = list{"gitlab-org/demo"}
	}
	for _, path := range f.projects {
		opts.Projects = append(opts.Projects, gitlab.Project{Path: path})
	}
	var err error
	if opts.Faults, err = parseFaults(f.faults); err != nil {
		return opts, err
	}
	token := defaultGitLabToken
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
	opts.Tokens = []gitlab.Token{{Token: token, Admin: true, Scopes: []string{"read_api", "create_runner", "manage_runner"}}}
	return opts, nil
}

func runGitLab(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	f, err := parseGitLab(args, stderr)
	if err != nil {
		return report(stderr, err)
	}
	opts, err := f.options()
	if err != nil {
		return report(stderr, err)
	}
	opts.Log = slog.New(slog.NewTextHandler(stderr, nil))
	sim, err := gitlab.New(opts)
	if err != nil {
		return report(stderr, err)
	}
	defer sim.Close()
	if err := serveGitLab(ctx, sim, f, opts, stdout, stderr); err != nil {
		return report(stderr, err)
	}
	if broken := sim.Violations(); len(broken) > 0 {
		printf(stderr, "forgesim: %d contract violations, the first: %+v\n", len(broken), broken[0])
		return exitViolation
	}
	return exitOK
}

// serveGitLab runs both listeners until ctx ends.
func serveGitLab(
	ctx context.Context, sim *gitlab.Server, f gitLabFlags, opts gitlab.Options, stdout, stderr io.Writer,
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
	if f.url == "" {
		f.url = "http://" + api.Addr().String()
	}
	sim.SetURL(f.url)
	failed := make(chan error, 2)
	servers := []*http.Server{
		{Handler: sim.Handler(), ReadHeaderTimeout: 10 * time.Second},
		{Handler: sim.Control(), ReadHeaderTimeout: 10 * time.Second},
	}
	for i, listener := range []net.Listener{api, ctl} {
		go func() { failed <- servers[i].Serve(listener) }()
	}
	printf(stderr, "forgesim: GitLab on http://%s, control on http://%s\n", api.Addr(), ctl.Addr())
	if f.exports {
		printf(stdout, "export FORGESIM_PID=%d\n", os.Getpid())
		printf(stdout, "export FORGESIM_CONTROL_URL=http://%s\n", ctl.Addr())
		printf(stdout, "export GITLAB_URL=%s\n", f.url)
		printf(stdout, "export CI_SERVER_URL=%s\n", f.url)
		printf(stdout, "export GITLAB_TOKEN=%s\n", opts.Tokens[0].Token)
		printf(stdout, "export GITLAB_PROJECT=%s\n", opts.Projects[0].Path)
	}
	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	sim.Close() // ends held questions for jobs, so that Shutdown is quick
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	for _, server := range servers {
		_ = server.Shutdown(grace)
	}
	return err
}

// runGitLabRunner is the stand-in for gitlab-runner.
func runGitLabRunner(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	program := gitlabrunner.Program{Stdout: stdout, Stderr: stderr, Getenv: os.Getenv}
	return program.Main(ctx, args)
}

// gitLabRunnerScript starts the stand-in out of the image that it lies in, wherever that
// was copied to.
const gitLabRunnerScript = `#!/bin/sh
# Stand-in for gitlab-runner.
root=$(cd "$(dirname "$0")/../.." && pwd) || exit 1
exec "$root/opt/actions-runner/bin/Runner.Listener" gitlab-runner "$@"
`

// layGitLabRunner writes usr/bin/gitlab-runner below root, beside the runner of
// simrunner.Layout, whose program it shares.
func layGitLabRunner(root string) error {
	path := filepath.Join(root, "usr", "bin", "gitlab-runner")
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.WriteFile(path, []byte(gitLabRunnerScript), 0o755)
	}
	if err != nil {
		return errors.Join(errors.New("lay out gitlab-runner"), err)
	}
	return nil
}
