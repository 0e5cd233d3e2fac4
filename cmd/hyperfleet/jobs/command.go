// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
)

// timeout limits the time that all requests of a command to the API server may take.
const timeout = time.Minute

// options holds the flags that both commands have.
type options struct {
	cli.Kube

	allNamespaces bool
	output        cli.Output
}

func (o *options) addFlags(cmd *cobra.Command, formats ...string) {
	flags := cmd.Flags()
	o.AddKubeFlags(flags, "namespace of the jobs; default: the namespace of the context")
	flags.BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "show the jobs of all namespaces")
	o.output.AddFlag(cmd, formats...)
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cli.Usage(err) })
}

func (o *options) validate() error {
	if o.allNamespaces && o.Namespace != "" {
		return cli.Usagef("--namespace and --all-namespaces are mutually exclusive: use one of them")
	}

	return nil
}

// New returns the command `hyperfleet jobs`, which lists jobs.
func New() *cobra.Command {
	var (
		opts   options
		filter filter
	)

	cmd := &cobra.Command{
		Use:   "jobs",
		Short: "List CI jobs, and show what each waiting job waits for",
		Long: `List the CI jobs that the operator knows: first the waiting jobs, then the running jobs, then the
completed jobs. The operator deletes completed jobs after the time that runners.jobRetention sets.

The exit code is 0 on success, even if there are no jobs; 1 if the API server does not respond; 2 if
the command line is invalid.`,
		Example: "  hyperfleet jobs -n ci --state queued\n  hyperfleet jobs -A --pool linux -o wide\n" +
			"  hyperfleet jobs -n ci --state queued -o name | xargs -n 1 hyperfleet job -n ci",
		Args: rejectArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(opts.validate(), filter.validate()); err != nil {
				return cli.Usagef("jobs: %w", err)
			}

			ctx, stop := cli.WithTimeout(cmd, timeout)
			defer stop()

			src, err := connect(opts)
			if err != nil {
				return fmt.Errorf("jobs: %w", err)
			}

			all, err := src.listJobs(ctx)
			if err != nil {
				return fmt.Errorf("jobs: %w", err)
			}

			list := newList(filter.apply(all), clock.RealClock{}.Now(), opts.allNamespaces)

			return opts.output.Print(cmd.OutOrStdout(), list)
		},
	}
	opts.addFlags(cmd, cli.OutputTable, cli.OutputWide, cli.OutputName, cli.OutputJSON, cli.OutputYAML)
	cmd.Flags().StringSliceVar(&filter.states, "state", nil, "only jobs in these states: waiting, queued, running, completed")
	cmd.Flags().StringVar(&filter.pool, "pool", "", "only jobs of this RunnerPool")

	return cmd
}

// NewJobCommand returns the command `hyperfleet job`, which shows everything that is known about one job.
func NewJobCommand() *cobra.Command {
	var (
		opts options
		log  bool
	)

	cmd := &cobra.Command{
		Use:   "job ID",
		Short: "Show the state, the timeline and the log of one CI job, and what it waits for",
		Long: `Show one CI job: its state, what it waits for, its timeline, its machine, and the end of its runner's
log. ID is the name of the RunnerJob, the ID of the job at the CI platform, or the URL of the job at
the CI platform.

The machine sends the log with its last report. The log has the output of the runner and of the job,
without the machine's own credentials.

The exit code is 0 if the job was found; 1 if the job was not found, or if the API server does not
respond; 2 if the command line is invalid.`,
		Example: "  hyperfleet job 29679449526 -n ci\n" +
			"  hyperfleet job https://github.com/acme/app/actions/runs/10683749869/job/29679449526 -A\n" +
			"  hyperfleet job gh-29679449526 --log",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || strings.TrimSpace(args[0]) == "" {
				return cli.Usagef("job: give one job by its RunnerJob name, its ID or its URL: run `hyperfleet jobs` to list the jobs")
			}

			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := opts.validate(); err != nil {
				return cli.Usagef("job: %w", err)
			}

			ctx, stop := cli.WithTimeout(cmd, timeout)
			defer stop()

			src, err := connect(opts)
			if err != nil {
				return fmt.Errorf("job: %w", err)
			}

			matching, err := src.findObjects(ctx, args[0])
			if err != nil {
				return fmt.Errorf("job: %w", err)
			}

			details := newDetails(matching, clock.RealClock{}.Now())

			return opts.output.Print(cmd.OutOrStdout(), cli.Content{Data: details, Print: func(out io.Writer, _ bool) error {
				printer{out, time.Local}.printDetails(details, log)

				return nil
			}})
		},
	}
	opts.addFlags(cmd, cli.OutputTable, cli.OutputJSON, cli.OutputYAML)
	cmd.Flags().BoolVar(&log, "log", false, "print the whole log that was kept instead of its last lines")

	return cmd
}

func rejectArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return cli.Usagef("%s: the command takes no arguments: to show one job, run `hyperfleet job %s`", cmd.Name(), args[0])
	}

	return nil
}

// filter selects jobs by state and pool. An empty field selects all jobs.
type filter struct {
	states []string
	pool   string
}

func (f filter) validate() error {
	for _, state := range f.states {
		if stateRank(state) < 0 {
			return fmt.Errorf("unknown state %q: use waiting, queued, running or completed", state)
		}
	}

	return nil
}

func (f filter) apply(jobs []v1alpha1.RunnerJob) []v1alpha1.RunnerJob {
	return slices.DeleteFunc(jobs, func(job v1alpha1.RunnerJob) bool {
		hasState := len(f.states) == 0 || slices.ContainsFunc(f.states, func(s string) bool {
			return strings.EqualFold(strings.TrimSpace(s), string(job.Spec.State))
		})

		return !hasState || f.pool != "" && job.PoolName() != f.pool
	})
}

// stateRank returns the position of a state in the order of lists, and -1 if the state is unknown. It ignores
// case.
func stateRank(state string) int {
	return slices.IndexFunc([]v1alpha1.JobState{
		v1alpha1.JobQueued, v1alpha1.JobWaiting, v1alpha1.JobRunning, v1alpha1.JobCompleted,
	}, func(s v1alpha1.JobState) bool { return strings.EqualFold(strings.TrimSpace(state), string(s)) })
}
