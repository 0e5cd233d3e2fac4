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

// defaultGiteaToken is the access token when no --token-file is given. It opens nothing but
// the simulator.
const defaultGiteaToken = "0123456789abcdef0123456789abcdef01234567"

type giteaFlags struct {
	common

	tokenFile, url string
	repositories   list
	lost           time.Duration
}

func parseGitea(name string, args []string, stderr io.Writer) (giteaFlags, error) {
	var f giteaFlags
	set := f.flagSet(name, texts{
		listen: "127.0.0.1:8482", control: "127.0.0.1:8483", api: "address of the instance",
		secret: "the webhooks' secret", injected: "webhookLost=0.1,jitDelay=2s",
	}, stderr)
	set.StringVar(&f.url, "url", "", "URL of the instance in links and webhooks (default: that of --listen)")
	set.StringVar(&f.tokenFile, "token-file", "", "file with the access token to accept")
	set.Var(&f.repositories, "repo", "OWNER/NAME of a repository (repeatable; default: acme/demo)")
	set.DurationVar(&f.lost, "lost-timeout", 0, "a running job whose runner is silent fails after this (default 10m)")
	err := parse(set, args) // fills f in: not in the return, which may copy f first
	return f, err
}

func (f *giteaFlags) options(forgejo bool) (gitea.Options, error) {
	opts := gitea.Options{Forgejo: forgejo, Seed: f.seed, Log: f.log, LostTimeout: f.lost}
	if opts.Repositories = f.repositories; len(opts.Repositories) == 0 {
		opts.Repositories = []string{"acme/demo"}
	}
	var err error
	if opts.Faults, opts.Webhook, err = f.read(); err != nil {
		return opts, err
	}
	token, err := readSecret(f.tokenFile, defaultGiteaToken)
	opts.Tokens = []gitea.Token{{Token: token, Scopes: []string{"write:repository", "write:organization", "write:admin"}}}
	return opts, err
}

// startGitea starts either server.
func startGitea(forgejo bool) func(args []string, stderr io.Writer) (*site, error) {
	title := "Gitea"
	if forgejo {
		title = "Forgejo"
	}
	name := strings.ToLower(title)
	return func(args []string, stderr io.Writer) (*site, error) {
		f, err := parseGitea(name, args, stderr)
		if err != nil {
			return nil, err
		}
		opts, err := f.options(forgejo)
		if err != nil {
			return nil, err
		}
		sim, err := gitea.New(opts)
		if err != nil {
			return nil, err
		}
		return &site{common: f.common, sim: sim, name: title, begin: func(api string) []string {
			url, prefix := cmp.Or(f.url, api), strings.ToUpper(title)
			sim.SetURL(url)
			return []string{
				prefix + "_URL=" + url, prefix + "_TOKEN=" + opts.Tokens[0].Token, prefix + "_REPOSITORY=" + opts.Repositories[0],
			}
		}}, nil
	}
}

// giteaRunnerScript starts a stand-in out of the image that it lies in, wherever that was
// copied to.
const giteaRunnerScript = `#!/bin/sh
# Stand-in for %[1]s.
root=$(cd "$(dirname "$0")/../.." && pwd) || exit 1
exec "$root/opt/actions-runner/bin/Runner.Listener" %[1]s "$@"
`

// layGiteaRunners writes usr/bin/act_runner and usr/bin/forgejo-runner below root, beside
// the runner of simrunner.Layout, whose program they share.
func layGiteaRunners(root string) error {
	for _, name := range []string{"act_runner", "forgejo-runner"} {
		path := filepath.Join(root, "usr", "bin", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("lay out %s: %w", name, err)
		}
		if err := os.WriteFile(path, fmt.Appendf(nil, giteaRunnerScript, name), 0o755); err != nil {
			return fmt.Errorf("lay out %s: %w", name, err)
		}
	}
	return nil
}
