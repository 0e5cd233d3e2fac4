// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package forgesim

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/buildkite"
)

// defaultClusterToken is the agent token if --token-file is not set. Only the simulator accepts it.
const defaultClusterToken = "bkct_simulatedclusteragenttoken0000000"

type buildkiteFlags struct {
	common

	tokenFile, organization, repository string
	queues                              list
	lost                                time.Duration
}

func parseBuildkite(args []string, stderr io.Writer) (buildkiteFlags, error) {
	var f buildkiteFlags
	set := f.newFlagSet("buildkite", flagTexts{
		listen: "127.0.0.1:8480", control: "127.0.0.1:8481", api: "address of the agent API",
		secret: "the webhook token", injected: "webhookLost=0.1,jitDelay=2s",
	}, stderr)
	set.StringVar(&f.tokenFile, "token-file", "", "file with the cluster's agent token")
	set.StringVar(&f.organization, "organization", "acme", "slug of the organization; its pipelines are created when jobs name them")
	set.StringVar(&f.repository, "repository", "",
		"repository that agents check out at the head of main (default: a github.com URL that does not exist)")
	set.Var(&f.queues, "queue", "key of a queue, the default queue first (repeatable; default: default)")
	set.DurationVar(&f.lost, "lost-timeout", 0, "time without a call of the agent after which its running job fails (default 3m)")
	err := parseFlags(set, args) // parse fills f: a call in the return statement might run after f is copied
	return f, err
}

func (f *buildkiteFlags) newOptions() (buildkite.Options, error) {
	opts := buildkite.Options{
		Organization: f.organization, Repository: f.repository, Queues: f.queues, Seed: f.seed, Log: f.log,
		LostTimeout: f.lost,
	}
	var err error
	if opts.Faults, opts.Webhook, err = f.readFaultsAndWebhook(); err != nil {
		return opts, err
	}
	token, err := readSecret(f.tokenFile, defaultClusterToken)
	opts.Tokens = []string{token}
	return opts, err
}

func startBuildkite(args []string, stderr io.Writer) (*instance, error) {
	f, err := parseBuildkite(args, stderr)
	if err != nil {
		return nil, err
	}
	opts, err := f.newOptions()
	if err != nil {
		return nil, err
	}
	sim, err := buildkite.New(opts)
	if err != nil {
		return nil, err
	}
	return &instance{common: f.common, sim: sim, name: "Buildkite", path: "/v3", prepare: func(api string) []string {
		return []string{
			"BUILDKITE_AGENT_ENDPOINT=" + api + "/v3", "BUILDKITE_AGENT_TOKEN=" + opts.Tokens[0],
			"BUILDKITE_ORGANIZATION_SLUG=" + f.organization,
		}
	}}, nil
}

// buildkiteAgentScript starts the simulated agent from the image that contains the script, wherever
// the image was copied to.
const buildkiteAgentScript = `#!/bin/sh
# Simulated buildkite-agent.
root=$(cd "$(dirname "$0")/../.." && pwd) || exit 1
exec "$root/opt/actions-runner/bin/Runner.Listener" buildkite-agent "$@"
`

// writeBuildkiteAgent writes usr/bin/buildkite-agent below root. The script runs the program that
// simrunner.Layout installs.
func writeBuildkiteAgent(root string) error {
	path := filepath.Join(root, "usr", "bin", "buildkite-agent")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write buildkite-agent: %w", err)
	}
	if err := os.WriteFile(path, []byte(buildkiteAgentScript), 0o755); err != nil {
		return fmt.Errorf("write buildkite-agent: %w", err)
	}
	return nil
}
