// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
)

// timeout bounds all that a command asks of the API server.
const timeout = time.Minute

// options are the flags that both commands have.
type options struct {
	cli.Kube

	all    bool
	output string
}

func (o *options) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	o.AddFlags(flags, "the jobs")
	flags.BoolVarP(&o.all, "all-namespaces", "A", false, "jobs of all namespaces")
	flags.StringVar(&o.output, "output", cli.OutputTable, "table, for people, or json, for programs")
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cli.Usage(err) })
}

func (o *options) validate() error {
	if err := cli.CheckOutput(o.output); err != nil {
		return err
	}

	if o.all && o.Namespace != "" {
		return cli.Usagef("--namespace and --all-namespaces exclude each other: give one of them")
	}

	return nil
}

// New makes the command that lists jobs.
func New() *cobra.Command {
	var (
		opts   options
		filter filter
	)

	cmd := &cobra.Command{
		Use:   "jobs",
		Short: "List CI jobs, and say what those that wait are waiting for",
		Long: `List the CI jobs that the operator knows: those that wait first, then those that run, then
those that are over, for as long as they are kept (runners.jobRetention).

The exit code is 0, also if there are no jobs; 1 if the API server does not answer; 2 if the
command line is invalid.`,
		Example: "  hyperfleet jobs -n ci --state queued\n  hyperfleet jobs -A --pool linux --output json",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(opts.validate(), filter.validate()); err != nil {
				return cli.Usagef("jobs: %w", err)
			}

			ctx, stop := cli.Bounded(cmd, timeout)
			defer stop()

			src, err := connect(opts)
			if err != nil {
				return fmt.Errorf("jobs: %w", err)
			}

			all, err := src.jobs(ctx)
			if err != nil {
				return fmt.Errorf("jobs: %w", err)
			}

			return printer{cmd.OutOrStdout(), clock.RealClock{}.Now(), time.Local}.list(filter.apply(all), opts)
		},
	}
	opts.add(cmd)
	cmd.Flags().StringSliceVar(&filter.states, "state", nil, "only jobs in these states: waiting, queued, running, completed")
	cmd.Flags().StringVar(&filter.pool, "pool", "", "only jobs of this RunnerPool")

	return cmd
}

// NewOne makes the command that explains one job.
func NewOne() *cobra.Command {
	var (
		opts options
		log  bool
	)

	cmd := &cobra.Command{
		Use:   "job ID",
		Short: "Tell what became of one CI job, and what it waits for",
		Long: `Explain one CI job: its state, what it waits for, its timeline, its machine, and the
end of its runner's log. ID is the name of the RunnerJob, the id of the job with its CI
platform, or its web address there.

The log is kept when the machine has sent its last report. It is the output of the runner and
of the job, without the machine's own credentials.

The exit code is 0 if the job was found; 1 if it was not, or if the API server does not
answer; 2 if the command line is invalid.`,
		Example: "  hyperfleet job 29679449526 -n ci\n" +
			"  hyperfleet job https://github.com/acme/app/actions/runs/10683749869/job/29679449526 -A\n" +
			"  hyperfleet job gh-29679449526 --log",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || strings.TrimSpace(args[0]) == "" {
				return cli.Usagef("job: give one job: its RunnerJob's name, its id, or its web address; `hyperfleet jobs` lists them")
			}

			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := opts.validate(); err != nil {
				return cli.Usagef("job: %w", err)
			}

			ctx, stop := cli.Bounded(cmd, timeout)
			defer stop()

			src, err := connect(opts)
			if err != nil {
				return fmt.Errorf("job: %w", err)
			}

			found, err := src.details(ctx, args[0])
			if err != nil {
				return fmt.Errorf("job: %w", err)
			}

			now := clock.RealClock{}.Now()

			return printer{cmd.OutOrStdout(), now, time.Local}.explain(explained(found, now), opts.output, log)
		},
	}
	opts.add(cmd)
	cmd.Flags().BoolVar(&log, "log", false, "print all of the log that is kept, and not its last lines only")

	return cmd
}

func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return cli.Usagef("%s: it takes no argument: `hyperfleet job %s` explains one job", cmd.Name(), args[0])
	}

	return nil
}

// filter chooses among jobs.
type filter struct {
	states []string
	pool   string
}

func (f filter) validate() error {
	for _, state := range f.states {
		if rank(state) < 0 {
			return fmt.Errorf("unknown state %q: use waiting, queued, running or completed", state)
		}
	}

	return nil
}

func (f filter) apply(jobs []v1alpha1.RunnerJob) []v1alpha1.RunnerJob {
	return slices.DeleteFunc(jobs, func(job v1alpha1.RunnerJob) bool {
		in := len(f.states) == 0 || slices.ContainsFunc(f.states, func(s string) bool {
			return strings.EqualFold(strings.TrimSpace(s), string(job.Spec.State))
		})

		return !in || f.pool != "" && job.Status.Pool != f.pool
	})
}

// rank gives a state's place in lists; -1 if there is no such state.
func rank(state string) int {
	return slices.IndexFunc([]v1alpha1.JobState{
		v1alpha1.JobQueued, v1alpha1.JobWaiting, v1alpha1.JobRunning, v1alpha1.JobCompleted,
	}, func(s v1alpha1.JobState) bool { return strings.EqualFold(strings.TrimSpace(state), string(s)) })
}
