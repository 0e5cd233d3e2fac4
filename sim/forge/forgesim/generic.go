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

	sign    string
	sources list
	updates bool
}

func parseGeneric(args []string, stderr io.Writer) (genericFlags, error) {
	var f genericFlags
	set := f.flagSet("generic", texts{
		listen: "127.0.0.1:8486", control: "127.0.0.1:8487", api: "address that the jobs' commands call",
		secret: "the webhook secret", injected: "webhookLost=0.1,serverError=0.1",
	}, stderr)
	set.StringVar(&f.sign, "signature", string(generic.SignStandard), "how webhooks are signed: standard or hub")
	set.BoolVar(&f.updates, "updates", false, "webhooks tell of jobs that run and are over as well")
	set.Var(&f.sources, "source", "source of jobs (repeatable; default demo)")
	err := parse(set, args) // fills f in: not in the return, which may copy f first
	return f, err
}

func startGeneric(args []string, stderr io.Writer) (*site, error) {
	f, err := parseGeneric(args, stderr)
	if err != nil {
		return nil, err
	}
	opts := generic.Options{
		Sources: f.sources, Seed: f.seed, Log: f.log, Sign: generic.Signature(f.sign), Updates: f.updates,
	}
	if opts.Faults, opts.Webhook, err = f.read(); err != nil {
		return nil, err
	}
	sim, err := generic.New(opts)
	if err != nil {
		return nil, err
	}
	return &site{common: f.common, sim: sim, name: "generic sender", serves: "commands", begin: func(api string) []string {
		sim.SetURL(api)
		return []string{"FORGESIM_JOBS_URL=" + api}
	}}, nil
}

// genericJobScript starts the stand-in out of the image that it lies in, wherever that
// was copied to.
const genericJobScript = `#!/bin/sh
# Does one job of the simulated generic sender.
root=$(cd "$(dirname "$0")/../.." && pwd) || exit 1
exec "$root/opt/actions-runner/bin/Runner.Listener" generic-job "$@"
`

// layGenericJob writes usr/bin/generic-job below root, the command of a pool whose jobs
// the simulated sender has. It shares the program of simrunner.Layout.
func layGenericJob(root string) error {
	path := filepath.Join(root, "usr", "bin", "generic-job")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("lay out generic-job: %w", err)
	}
	if err := os.WriteFile(path, []byte(genericJobScript), 0o755); err != nil {
		return fmt.Errorf("lay out generic-job: %w", err)
	}
	return nil
}
