// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/hyperfleet/hyperfleet/sim/pve"
)

// Options are the command's flags.
type Options struct {
	// Jobs to queue, each of which runs for Job.
	Jobs int
	Job  time.Duration
	// Max machines at a time.
	Max int
	// Nodes of the simulated cluster, each with its own storage.
	Nodes int
	// Clone and Boot are how long these take, ParallelClones how many clones one storage
	// makes at a time.
	Clone, Boot    time.Duration
	ParallelClones int
	// Faults is a list of NAME[=PROBABILITY]; see parseFaults. Seed makes the same ones again.
	Faults string
	Seed   int64
	// Platform is the CI platform simulated.
	Platform string
	// CompareWarm queues the jobs three times, for pools with and without warm machines.
	CompareWarm bool
	// Unlimited: GitHub has no rate limits.
	Unlimited bool
	// Output is text or json.
	Output string
	// Timeout bounds the whole run, Cleanup the time from the last job's end until
	// nothing is left.
	Timeout, Cleanup time.Duration
	// Hold keeps everything running after the jobs, until an interrupt.
	Hold bool
	// Keep keeps the working directory with all logs.
	Keep bool
	// Plain appends lines in place of the live table.
	Plain bool
	// LogLevel of the operator.
	LogLevel string

	vmOptions
	realOptions
}

// Outputs.
const (
	outputText = "text"
	outputJSON = "json"
)

func (o *Options) bind(flags *pflag.FlagSet) {
	flags.IntVar(&o.Jobs, "jobs", 20, "CI jobs to queue, all at once")
	flags.DurationVar(&o.Job, "job", 2*time.Second, "how long one job runs")
	flags.IntVar(&o.Max, "max", 50, "the pool's limit of machines at a time")
	flags.IntVar(&o.Nodes, "nodes", 3, "hypervisor nodes, each with storage and template of its own")
	flags.DurationVar(&o.Clone, "clone", 2*time.Second, "how long one clone takes")
	flags.DurationVar(&o.Boot, "boot", 3*time.Second, "how long one machine takes to boot")
	flags.IntVar(&o.ParallelClones, "parallel-clones", 2, "clones that one storage makes at a time")
	flags.StringVar(&o.Faults, "faults", "", "trouble to inject, as NAME[=PROBABILITY],...: "+faultNames())
	flags.Int64Var(&o.Seed, "seed", 1, "seed of the faults' dice")
	flags.StringVar(&o.Platform, "platform", "github", "CI platform to simulate: "+platformNames())
	flags.BoolVar(&o.Unlimited, "no-rate-limits", false,
		"let the CI platform take any number of calls, as GitHub Enterprise Server does by default")
	flags.BoolVar(&o.CompareWarm, "compare-warm", false,
		"queue so many jobs for each of three pools, and compare: cold, with stopped and with idle warm machines")
	flags.StringVar(&o.Output, "output", outputText, "text, or json: one object as the last line of stdout")
	flags.DurationVar(&o.Timeout, "timeout", leastTimeout,
		"give up after this long; where it is not set, three times the shortest possible time is added")
	flags.DurationVar(&o.Cleanup, "cleanup-timeout", leastCleanup,
		"how long machines, claims, runners and cloud-init ISOs may take to go away after the last job; where it is "+
			"not set, a second for every ten machines is added")
	flags.BoolVar(&o.Hold, "hold", false,
		"keep everything running when the jobs are over, and say how to look around, until Ctrl-C")
	flags.BoolVar(&o.Keep, "keep", false, "keep the working directory with all logs")
	flags.BoolVar(&o.Plain, "plain", false, "append lines instead of drawing a live table")
	o.vmOptions.bind(flags)
	o.realOptions.bind(flags)
	flags.StringVar(&o.LogLevel, "log-level", "INFO", "the operator's log level: DEBUG, INFO, WARN or ERROR")
}

func (o *Options) validate() error {
	var errs []error

	for _, least := range []struct {
		flag       string
		value, min int
	}{
		{"jobs", o.Jobs, 1}, {"max", o.Max, 1}, {"nodes", o.Nodes, 1}, {"parallel-clones", o.ParallelClones, 1},
	} {
		if least.value < least.min {
			errs = append(errs, fmt.Errorf("--%s must be at least %d, not %d", least.flag, least.min, least.value))
		}
	}

	for _, span := range []struct {
		flag  string
		value time.Duration
	}{
		{"job", o.Job}, {"clone", o.Clone}, {"boot", o.Boot}, {"timeout", o.Timeout}, {"cleanup-timeout", o.Cleanup},
	} {
		if span.value <= 0 {
			errs = append(errs, fmt.Errorf("--%s must be above zero, not %s", span.flag, span.value))
		}
	}

	if o.Max > maxReplicas {
		errs = append(errs, fmt.Errorf("--max must be at most %d, the limit of a RunnerPool", maxReplicas))
	}

	if o.ParallelClones > maxParallelClones {
		errs = append(errs, fmt.Errorf("--parallel-clones must be at most %d, the limit of a HypervisorCluster",
			maxParallelClones))
	}

	if _, ok := platformNamed(o.Platform); !ok {
		errs = append(errs, fmt.Errorf("--platform must be one of %s, not %q", platformNames(), o.Platform))
	}

	if o.CompareWarm && o.Platform != "github" {
		errs = append(errs, errors.New("--compare-warm is for --platform github"))
	}

	if o.CompareWarm && 2*o.Jobs > maxReplicas {
		errs = append(errs, fmt.Errorf("--compare-warm takes at most %d --jobs", maxReplicas/2)) //nolint:mnd // twice as many machines
	}

	if o.Output != outputText && o.Output != outputJSON {
		errs = append(errs, fmt.Errorf("--output must be text or json, not %q", o.Output))
	}

	errs = append(errs, o.validateVM(), o.validateReal())

	if _, err := parseFaults(o.Faults); err != nil {
		errs = append(errs, fmt.Errorf("--faults: %w", err))
	}

	return errors.Join(errs...)
}

// What a run is given where no flag says it: so much, and more the more it has to do.
const (
	leastTimeout      = 5 * time.Minute
	leastCleanup      = time.Minute
	floorsGiven       = 3
	cleanupPerMachine = 100 * time.Millisecond
)

// patience gives simulated machines the time that their number and their delays ask for.
func (o *Options) patience(set func(flag string) bool) {
	if !set("timeout") && o.Nodes > 0 && o.ParallelClones > 0 {
		m := o.model()
		o.Timeout += floorsGiven * o.floor(pve.FloorInput{
			Jobs: o.allJobs(), CloneSlots: o.Nodes * o.ParallelClones,
			Clone: o.Clone, Boot: m.Delays.Start + o.Boot, Job: o.Job, Destroy: m.Delays.Destroy,
		})
	}

	if !set("cleanup-timeout") {
		o.Cleanup += time.Duration(min(o.allJobs(), o.Max)) * cleanupPerMachine
	}
}

// allJobs is how many jobs are queued in all.
func (o *Options) allJobs() int {
	if o.CompareWarm {
		return o.Jobs * len(kinds())
	}

	return o.Jobs
}

// Limits that the contracts set (api/hyperfleet/v1alpha1).
const (
	maxReplicas       = 10000
	maxParallelClones = 64
)
