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

// defaultGitLabToken is the access token if --token-file is not set. Only the simulator accepts it.
const defaultGitLabToken = "glpat-simulatedaccesstoken"

type gitLabFlags struct {
	common

	tokenFile, url string
	projects       list
	lost           time.Duration
}

func parseGitLab(args []string, stderr io.Writer) (gitLabFlags, error) {
	var f gitLabFlags
	set := f.newFlagSet("gitlab", flagTexts{
		listen: "127.0.0.1:8480", control: "127.0.0.1:8481", api: "address of the instance",
		secret: "the webhooks' secret token or signing token (whsec_)", injected: "webhookLost=0.1,jitDelay=2s",
	}, stderr)
	set.StringVar(&f.url, "url", "", "URL of the instance in links and webhooks (default: the address of --listen)")
	set.StringVar(&f.tokenFile, "token-file", "", "file with the access token that the simulator accepts")
	set.Var(&f.projects, "project", "full path of a project, such as group/project (repeatable; default: gitlab-org/demo)")
	set.DurationVar(&f.lost, "lost-timeout", 0, "time without a call of the runner after which its running job fails (default 1h)")
	err := parseFlags(set, args) // parse fills f: a call in the return statement might run after f is copied
	return f, err
}

func (f *gitLabFlags) newOptions() (gitlab.Options, error) {
	opts := gitlab.Options{Seed: f.seed, Log: f.log, LostTimeout: f.lost}
	if len(f.projects) == 0 {
		f.projects = list{"gitlab-org/demo"}
	}
	for _, path := range f.projects {
		opts.Projects = append(opts.Projects, gitlab.Project{Path: path})
	}
	var err error
	if opts.Faults, opts.Webhook, err = f.readFaultsAndWebhook(); err != nil {
		return opts, err
	}
	token, err := readSecret(f.tokenFile, defaultGitLabToken)
	opts.Tokens = []gitlab.Token{{Token: token, Admin: true, Scopes: []string{"read_api", "create_runner", "manage_runner"}}}
	return opts, err
}

func startGitLab(args []string, stderr io.Writer) (*instance, error) {
	f, err := parseGitLab(args, stderr)
	if err != nil {
		return nil, err
	}
	opts, err := f.newOptions()
	if err != nil {
		return nil, err
	}
	sim, err := gitlab.New(opts)
	if err != nil {
		return nil, err
	}
	return &instance{common: f.common, sim: sim, name: "GitLab", prepare: func(api string) []string {
		url := cmp.Or(f.url, api)
		sim.SetURL(url)
		return []string{
			"GITLAB_URL=" + url, "CI_SERVER_URL=" + url,
			"GITLAB_TOKEN=" + opts.Tokens[0].Token, "GITLAB_PROJECT=" + opts.Projects[0].Path,
		}
	}}, nil
}

// gitLabRunnerScript starts the simulated runner from the image that contains the script, wherever
// the image was copied to.
const gitLabRunnerScript = `#!/bin/sh
# Simulated gitlab-runner.
root=$(cd "$(dirname "$0")/../.." && pwd) || exit 1
exec "$root/opt/actions-runner/bin/Runner.Listener" gitlab-runner "$@"
`

// writeGitLabRunner writes usr/bin/gitlab-runner below root. The script runs the program that
// simrunner.Layout installs.
func writeGitLabRunner(root string) error {
	path := filepath.Join(root, "usr", "bin", "gitlab-runner")
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.WriteFile(path, []byte(gitLabRunnerScript), 0o755)
	}
	if err != nil {
		return errors.Join(errors.New("write gitlab-runner"), err)
	}
	return nil
}
