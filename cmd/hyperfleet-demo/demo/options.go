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
	// Jobs is the number of jobs to queue, and Job the duration of each job.
	Jobs int
	Job  time.Duration
	// Max is the maximum number of machines at a time.
	Max int
	// Nodes is the number of nodes in the simulated cluster. Each node has its own storage.
	Nodes int
	// Clone and Boot are the durations of a clone and of a boot. ParallelClones is the number of clones
	// that one storage runs at a time.
	Clone, Boot    time.Duration
	ParallelClones int
	// Faults is a list of NAME[=PROBABILITY]; see parseFaults. The same Seed reproduces the same faults.
	Faults string
	Seed   int64
	// Platform is the CI platform to simulate.
	Platform string
	// CompareWarm queues the jobs three times, for pools with and without warm machines.
	CompareWarm bool
	// Unlimited disables the rate limits of the GitHub simulator.
	Unlimited bool
	// Output is text or json.
	Output string
	// Timeout is the timeout of the run.
	Timeout time.Duration
	// Hold keeps all processes running after the jobs, until an interrupt.
	Hold bool
	// Keep keeps the working directory with all logs.
	Keep bool
	// LogLevel is the log level of the operator.
	LogLevel string

	// cleanupTimeout is the timeout from the end of the last job until all machines, claims, runners and
	// ISOs are deleted. It depends on the flags.
	cleanupTimeout time.Duration

	vmOptions
	realOptions
}

// Values of --output.
const (
	outputText = "text"
	outputJSON = "json"
)

func (o *Options) bind(flags *pflag.FlagSet) {
	flags.IntVar(&o.Jobs, "jobs", 20, "number of CI jobs to queue, all at the same time")
	flags.DurationVar(&o.Job, "job", 2*time.Second, "duration of one job")
	flags.IntVar(&o.Max, "max", 50, "maximum number of machines of the pool at a time")
	flags.IntVar(&o.Nodes, "nodes", 3, "number of hypervisor nodes, each with its own storage and template")
	flags.DurationVar(&o.Clone, "clone", 2*time.Second, "duration of one clone")
	flags.DurationVar(&o.Boot, "boot", 3*time.Second, "time that one machine takes to boot")
	flags.IntVar(&o.ParallelClones, "parallel-clones", 2, "number of clones that one storage runs at a time")
	flags.StringVar(&o.Faults, "faults", "", "faults to inject, as NAME[=PROBABILITY],...: "+faultNames())
	flags.Int64Var(&o.Seed, "seed", 1, "random seed of the faults")
	flags.StringVar(&o.Platform, "platform", "github", "CI platform to simulate: "+platformNames())
	flags.BoolVar(&o.Unlimited, "no-rate-limits", false,
		"disable the rate limits of the simulated GitHub, as GitHub Enterprise Server does by default")
	flags.BoolVar(&o.CompareWarm, "compare-warm", false,
		"queue --jobs jobs for each of three pools and compare them: without warm machines, with stopped, and with idle ones")
	flags.StringVar(&o.Output, "output", outputText, "output format: text, or json for one object as the last line of stdout")
	flags.DurationVar(&o.Timeout, "timeout", minTimeout,
		"timeout of the run; unless this flag is set, three times the shortest possible run time is added")
	flags.BoolVar(&o.Hold, "hold", false,
		"keep all processes running after the jobs until Ctrl-C, and print how to inspect them")
	flags.BoolVar(&o.Keep, "keep", false, "keep the working directory with all logs")
	o.vmOptions.bind(flags)
	o.realOptions.bind(flags)
	flags.StringVar(&o.LogLevel, "log-level", "INFO", "the operator's log level: DEBUG, INFO, WARN or ERROR")
}

func (o *Options) validate() error {
	var errs []error

	for _, number := range []struct {
		flag       string
		value, min int
	}{
		{"jobs", o.Jobs, 1}, {"max", o.Max, 1}, {"nodes", o.Nodes, 1}, {"parallel-clones", o.ParallelClones, 1},
	} {
		if number.value < number.min {
			errs = append(errs, fmt.Errorf("--%s must be at least %d, not %d", number.flag, number.min, number.value))
		}
	}

	for _, duration := range []struct {
		flag  string
		value time.Duration
	}{
		{"job", o.Job}, {"clone", o.Clone}, {"boot", o.Boot}, {"timeout", o.Timeout},
	} {
		if duration.value <= 0 {
			errs = append(errs, fmt.Errorf("--%s must be above zero, not %s", duration.flag, duration.value))
		}
	}

	if o.Max > maxReplicas {
		errs = append(errs, fmt.Errorf("--max must be at most %d, the limit of a RunnerPool", maxReplicas))
	}

	if o.ParallelClones > maxParallelClones {
		errs = append(errs, fmt.Errorf("--parallel-clones must be at most %d, the limit of a HypervisorCluster",
			maxParallelClones))
	}

	if _, ok := findPlatform(o.Platform); !ok {
		errs = append(errs, fmt.Errorf("--platform must be one of %s, not %q", platformNames(), o.Platform))
	}

	if o.CompareWarm && o.Platform != "github" {
		errs = append(errs, errors.New("--compare-warm needs --platform github"))
	}

	if o.CompareWarm && 2*o.Jobs > maxReplicas {
		errs = append(errs, fmt.Errorf("--compare-warm allows at most %d --jobs", maxReplicas/2)) //nolint:mnd // two machines per job
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

// Default timeouts of a run. setTimeouts adds to them, depending on the number of jobs and machines.
const (
	minTimeout        = 5 * time.Minute
	minCleanupTimeout = time.Minute
	timeoutFloors     = 3
	cleanupPerMachine = 100 * time.Millisecond
)

// setTimeouts sets the timeouts depending on the number of jobs, the number of machines and the configured
// delays. It does not change a timeout that the user set.
func (o *Options) setTimeouts(isSet func(flag string) bool) {
	if !isSet("timeout") && o.Nodes > 0 && o.ParallelClones > 0 {
		m := o.hypervisorModel()
		o.Timeout += timeoutFloors * o.floor(pve.FloorInput{
			Jobs: o.totalJobs(), CloneSlots: o.Nodes * o.ParallelClones,
			Clone: o.Clone, Boot: m.Delays.Start + o.Boot, Job: o.Job, Destroy: m.Delays.Destroy,
		})
	}

	o.cleanupTimeout = minCleanupTimeout + time.Duration(min(o.totalJobs(), o.Max))*cleanupPerMachine
}

// totalJobs returns the number of jobs that are queued for all pools.
func (o *Options) totalJobs() int {
	if o.CompareWarm {
		return o.Jobs * len(warmKinds())
	}

	return o.Jobs
}

// Limits of the API types in api/hyperfleet/v1alpha1.
const (
	maxReplicas       = 10000
	maxParallelClones = 64
)
