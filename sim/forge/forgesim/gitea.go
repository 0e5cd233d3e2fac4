// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package forgesim

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/gitea"
)

// defaultGiteaToken is the access token if --token-file is not set. Only the simulator accepts it.
const defaultGiteaToken = "0123456789abcdef0123456789abcdef01234567"

type giteaFlags struct {
	common

	tokenFile, url string
	repositories   list
	lost           time.Duration
}

func parseGitea(name string, args []string, stderr io.Writer) (giteaFlags, error) {
	var f giteaFlags
	set := f.newFlagSet(name, flagTexts{
		listen: "127.0.0.1:8482", control: "127.0.0.1:8483", api: "address of the instance",
		secret: "the webhooks' secret", injected: "webhookLost=0.1,jitDelay=2s",
	}, stderr)
	set.StringVar(&f.url, "url", "", "URL of the instance in links and webhooks (default: the address of --listen)")
	set.StringVar(&f.tokenFile, "token-file", "", "file with the access token that the simulator accepts")
	set.Var(&f.repositories, "repo", "OWNER/NAME of a repository (repeatable; default: acme/demo)")
	set.DurationVar(&f.lost, "lost-timeout", 0, "time without a call of the runner after which its running job fails (default 10m)")
	err := parseFlags(set, args) // parse fills f: a call in the return statement might run after f is copied
	return f, err
}

func (f *giteaFlags) newOptions(forgejo bool) (gitea.Options, error) {
	opts := gitea.Options{Forgejo: forgejo, Seed: f.seed, Log: f.log, LostTimeout: f.lost}
	if opts.Repositories = f.repositories; len(opts.Repositories) == 0 {
		opts.Repositories = []string{"acme/demo"}
	}
	var err error
	if opts.Faults, opts.Webhook, err = f.readFaultsAndWebhook(); err != nil {
		return opts, err
	}
	token, err := readSecret(f.tokenFile, defaultGiteaToken)
	opts.Tokens = []gitea.Token{{Token: token, Scopes: []string{"write:repository", "write:organization", "write:admin"}}}
	return opts, err
}

// asForgejo and asGitea are the values of the parameter isForgejo.
const asForgejo, asGitea = true, false

// startGitea returns the function that starts a simulated Gitea or Forgejo.
func startGitea(forgejo bool) func(args []string, stderr io.Writer) (*instance, error) {
	title := "Gitea"
	if forgejo {
		title = "Forgejo"
	}
	name := strings.ToLower(title)
	return func(args []string, stderr io.Writer) (*instance, error) {
		f, err := parseGitea(name, args, stderr)
		if err != nil {
			return nil, err
		}
		opts, err := f.newOptions(forgejo)
		if err != nil {
			return nil, err
		}
		sim, err := gitea.New(opts)
		if err != nil {
			return nil, err
		}
		return &instance{common: f.common, sim: sim, name: title, prepare: func(api string) []string {
			url, prefix := cmp.Or(f.url, api), strings.ToUpper(title)
			sim.SetURL(url)
			return []string{
				prefix + "_URL=" + url, prefix + "_TOKEN=" + opts.Tokens[0].Token, prefix + "_REPOSITORY=" + opts.Repositories[0],
			}
		}}, nil
	}
}

// giteaRunnerScript starts a simulated runner from the image that contains the script, wherever the
// image was copied to.
const giteaRunnerScript = `#!/bin/sh
# Simulated %[1]s.
root=$(cd "$(dirname "$0")/../.." && pwd) || exit 1
exec "$root/opt/actions-runner/bin/Runner.Listener" %[1]s "$@"
`

// writeGiteaRunners writes usr/bin/act_runner and usr/bin/forgejo-runner below root. The scripts
// run the program that simrunner.Layout installs.
func writeGiteaRunners(root string) error {
	for _, name := range []string{"act_runner", "forgejo-runner"} {
		path := filepath.Join(root, "usr", "bin", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
		if err := os.WriteFile(path, fmt.Appendf(nil, giteaRunnerScript, name), 0o755); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	return nil
}
