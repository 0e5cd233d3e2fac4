// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

// Exit codes, beside 0.
const (
	exitFailed = 1
	exitUsage  = 2
)

// timeout bounds all that a command asks of the API server.
const timeout = time.Minute

// usageError is a command line that cannot be meant.
type usageError struct{ error }

func usage(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// Unwrap gives the error itself.
func (e usageError) Unwrap() error { return e.error }

// ExitCode gives the exit code of an error of these commands: 2 for a command line that
// cannot be meant, 1 for a job that is not there, or an API server that does not answer.
// It is 0, and false, for an error that is not theirs to judge.
func ExitCode(err error) (int, bool) {
	switch {
	case err == nil:
		return 0, false
	case errorIs[usageError](err):
		return exitUsage, true
	case errorIs[missingError](err):
		return exitFailed, true
	default:
		return 0, false
	}
}

func errorIs[E error](err error) bool {
	_, ok := errors.AsType[E](err)

	return ok
}

// options are the flags that both commands have.
type options struct {
	kubeconfig, context string
	namespace           string
	all                 bool
	output              string
}

func (o *options) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "file that leads to the API server; default: KUBECONFIG, else the pod's own")
	flags.StringVar(&o.context, "context", "", "context of the kubeconfig; default: the current one")
	flags.StringVarP(&o.namespace, "namespace", "n", "", "namespace of the jobs; default: that of the context")
	flags.BoolVarP(&o.all, "all-namespaces", "A", false, "jobs of all namespaces")
	flags.StringVar(&o.output, "output", outputTable, "table, for people, or json, for programs")
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
}

const (
	outputTable = "table"
	outputJSON  = "json"
)

func (o *options) validate() error {
	if o.output != outputTable && o.output != outputJSON {
		return usage("unknown output %q: use table or json", o.output)
	}

	if o.all && o.namespace != "" {
		return usage("--namespace and --all-namespaces exclude each other: give one of them")
	}

	return nil
}

// bounded gives the context of one command: it ends with an interrupt, or with time.
func bounded(cmd *cobra.Command) (context.Context, func()) {
	parent := cmd.Context()
	if parent == nil {
		parent = context.Background()
	}

	ctx, stop := signal.NotifyContext(parent, syscall.SIGINT, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, timeout)

	return ctx, func() { cancel(); stop() }
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
command line cannot be meant.`,
		Example: "  hyperfleet jobs -n ci --state queued\n  hyperfleet jobs -A --pool linux --output json",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(opts.validate(), filter.validate()); err != nil {
				return usageError{fmt.Errorf("jobs: %w", err)}
			}

			ctx, stop := bounded(cmd)
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
		Long: `Tell the story of one CI job: its state, what it waits for, its timeline, its machine, and the
end of its runner's log. ID is the name of the RunnerJob, the id of the job with its CI
platform, or its web address there.

The log is kept when the machine has sent its last report. It is the output of the runner and
of the job, without the machine's own credentials.

The exit code is 0 if the job was found; 1 if it was not, or if the API server does not
answer; 2 if the command line cannot be meant.`,
		Example: "  hyperfleet job 29679449526 -n ci\n" +
			"  hyperfleet job https://github.com/acme/app/actions/runs/10683749869/job/29679449526 -A\n" +
			"  hyperfleet job gh-29679449526 --log",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || strings.TrimSpace(args[0]) == "" {
				return usage("job: give one job: its RunnerJob's name, its id, or its web address; `hyperfleet jobs` lists them")
			}

			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := opts.validate(); err != nil {
				return usageError{fmt.Errorf("job: %w", err)}
			}

			ctx, stop := bounded(cmd)
			defer stop()

			src, err := connect(opts)
			if err != nil {
				return fmt.Errorf("job: %w", err)
			}

			story, err := src.story(ctx, args[0])
			if err != nil {
				return fmt.Errorf("job: %w", err)
			}

			return printer{cmd.OutOrStdout(), clock.RealClock{}.Now(), time.Local}.explain(story, opts.output, log)
		},
	}
	opts.add(cmd)
	cmd.Flags().BoolVar(&log, "log", false, "print all of the log that is kept, and not its last lines only")

	return cmd
}

func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage("%s: it takes no argument: `hyperfleet job %s` explains one job", cmd.Name(), args[0])
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
