// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package forgesim

import (
	"cmp"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/gitlab"
)

// defaultGitLabToken is the access token when no --token-file is given. It opens nothing
// but the simulator.
const defaultGitLabToken = "glpat-simulatedaccesstoken"

type gitLabFlags struct {
	common

	tokenFile, url string
	projects       list
	lost, timeout  time.Duration
}

func parseGitLab(args []string, stderr io.Writer) (gitLabFlags, error) {
	var f gitLabFlags
	set := f.flagSet("gitlab", texts{
		listen: "127.0.0.1:8480", control: "127.0.0.1:8481", api: "address of the instance",
		secret: "the webhooks' secret token or signing token (whsec_)", injected: "webhookLost=0.1,jitDelay=2s",
	}, stderr)
	set.StringVar(&f.url, "url", "", "URL of the instance in links and webhooks (default: that of --listen)")
	set.StringVar(&f.tokenFile, "token-file", "", "file with the access token to accept")
	set.Var(&f.projects, "project", "full path of a project, such as group/project (repeatable; default: gitlab-org/demo)")
	set.DurationVar(&f.lost, "lost-timeout", 0, "a running job whose runner is silent fails after this (default 1h)")
	set.DurationVar(&f.timeout, "job-timeout", 0, "a job that runs for longer fails (default 1h)")
	err := parse(set, args) // fills f in: not in the return, which may copy f first
	return f, err
}

func (f *gitLabFlags) options() (gitlab.Options, error) {
	opts := gitlab.Options{Seed: f.seed, Log: f.log, LostTimeout: f.lost, JobTimeout: f.timeout}
	if len(f.projects) == 0 {
		f.projects = list{"gitlab-org/demo"}
	}
	for _, path := range f.projects {
		opts.Projects = append(opts.Projects, gitlab.Project{Path: path})
	}
	var err error
	if opts.Faults, opts.Webhook, err = f.read(); err != nil {
		return opts, err
	}
	token, err := readSecret(f.tokenFile, defaultGitLabToken)
	opts.Tokens = []gitlab.Token{{Token: token, Admin: true, Scopes: []string{"read_api", "create_runner", "manage_runner"}}}
	return opts, err
}

func startGitLab(args []string, stderr io.Writer) (*site, error) {
	f, err := parseGitLab(args, stderr)
	if err != nil {
		return nil, err
	}
	opts, err := f.options()
	if err != nil {
		return nil, err
	}
	sim, err := gitlab.New(opts)
	if err != nil {
		return nil, err
	}
	return &site{common: f.common, sim: sim, name: "GitLab", begin: func(api string) []string {
		url := cmp.Or(f.url, api)
		sim.SetURL(url)
		return []string{
			"GITLAB_URL=" + url, "CI_SERVER_URL=" + url,
			"GITLAB_TOKEN=" + opts.Tokens[0].Token, "GITLAB_PROJECT=" + opts.Projects[0].Path,
		}
	}}, nil
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
