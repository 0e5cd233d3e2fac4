// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package forgesim

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/hyperfleet/hyperfleet/sim/generic"
)

type genericFlags struct {
	common

	signature string
	sources   list
	updates   bool
}

func parseGeneric(args []string, stderr io.Writer) (genericFlags, error) {
	var f genericFlags
	set := f.newFlagSet("generic", flagTexts{
		listen: "127.0.0.1:8486", control: "127.0.0.1:8487", api: "address that the commands of jobs call",
		secret: "the webhook secret", injected: "webhookLost=0.1,serverError=0.1",
	}, stderr)
	set.StringVar(&f.signature, "signature", string(generic.SignStandard), "how webhooks are signed: standard or hub")
	set.BoolVar(&f.updates, "updates", false, "also send webhooks for running and completed jobs")
	set.Var(&f.sources, "source", "source of jobs (repeatable; default demo)")
	err := parseFlags(set, args) // parse fills f: a call in the return statement might run after f is copied
	return f, err
}

func startGeneric(args []string, stderr io.Writer) (*instance, error) {
	f, err := parseGeneric(args, stderr)
	if err != nil {
		return nil, err
	}
	opts := generic.Options{
		Sources: f.sources, Seed: f.seed, Log: f.log, Signature: generic.Signature(f.signature), Updates: f.updates,
	}
	if opts.Faults, opts.Webhook, err = f.readFaultsAndWebhook(); err != nil {
		return nil, err
	}
	sim, err := generic.New(opts)
	if err != nil {
		return nil, err
	}
	return &instance{common: f.common, sim: sim, name: "generic sender", callers: "commands", prepare: func(api string) []string {
		sim.SetURL(api)
		return []string{"FORGESIM_JOBS_URL=" + api}
	}}, nil
}

// genericJobScript starts the simulated command from the image that contains the script, wherever
// the image was copied to.
const genericJobScript = `#!/bin/sh
# Runs one job of the simulated generic sender.
root=$(cd "$(dirname "$0")/../.." && pwd) || exit 1
exec "$root/opt/actions-runner/bin/Runner.Listener" generic-job "$@"
`

// writeGenericJob writes usr/bin/generic-job below root. The script is the command of a pool whose
// jobs come from the simulated sender, and runs the program that simrunner.Layout installs.
func writeGenericJob(root string) error {
	path := filepath.Join(root, "usr", "bin", "generic-job")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write generic-job: %w", err)
	}
	if err := os.WriteFile(path, []byte(genericJobScript), 0o755); err != nil {
		return fmt.Errorf("write generic-job: %w", err)
	}
	return nil
}
