// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/jobs"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/live"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/cmd/internal/screen"
	"github.com/hyperfleet/hyperfleet/cmd/internal/signals"
)

const (
	// plainWidth and plainHeight are the width of a frame and the maximum number of its rows without a
	// terminal.
	plainWidth, plainHeight = 160, 40
	// minInterval prevents the terminal from flickering.
	minInterval = 200 * time.Millisecond
)

// options holds the flags of the command.
type options struct {
	cli.Kube

	interval time.Duration
	once     bool
	list     string
}

// New returns the command `hyperfleet top`.
func New() *cobra.Command {
	var opts options

	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show the pools, machines and jobs in the terminal, and what each waits for",
		Long: `Show the pools, machines and jobs of a cluster, and what each waits for, and keep the lists up to date.
Press ? for the keys. Colors show which objects work, wait and fail; set NO_COLOR for no colors. Without
a terminal, the command prints the list again after each interval.

The exit code is 0 after q or an interrupt; 1 if the API server does not respond or the namespace does
not exist; 2 if the command line is invalid.`,
		Example: "  hyperfleet top\n  hyperfleet top -n ci --list jobs\n  hyperfleet top --once --list pools",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			listIndex := slices.Index([]string{"pools", "machines", "jobs"}, opts.list)
			if listIndex < 0 {
				return cli.Usagef("top: unknown list %q: use pools, machines or jobs", opts.list)
			}

			if opts.interval < minInterval {
				return cli.Usagef("top: --interval must be at least %s", minInterval)
			}

			return run(cmd, opts, listIndex)
		},
	}
	flags := cmd.Flags()
	opts.AddKubeFlags(flags, "namespace of the objects to show; default: all namespaces")
	flags.DurationVar(&opts.interval, "interval", time.Second, "time between two updates")
	flags.BoolVar(&opts.once, "once", false, "print the list once and exit")
	flags.StringVar(&opts.list, "list", "pools", "list to show first: pools, machines or jobs")
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cli.Usage(err) })

	return cmd
}

// watcher shows the view until it is stopped.
type watcher struct {
	view  *live.View
	clock clock.WithTicker
	state state
	// loaded receives functions that show loaded lines in their pane, which may be closed by then.
	loaded chan func()
}

func run(cmd *cobra.Command, opts options, listIndex int) error {
	ctx, stop := signals.NotifyContext(cmd.Context())
	defer stop()

	view, err := live.Connect(ctx, opts.Kube)
	if err == nil {
		err = view.CheckNamespace(ctx)
	}

	if err != nil {
		return fmt.Errorf("top: %w", err)
	}

	w := &watcher{view: view, clock: clock.RealClock{}, loaded: make(chan func())}
	w.state = state{server: view.Server, shownList: listIndex}

	in, isInFile := cmd.InOrStdin().(*os.File)
	out, isOutFile := cmd.OutOrStdout().(*os.File)

	if opts.once || !isInFile || !isOutFile || !screen.IsTerminal(in) || !screen.IsTerminal(out) {
		err = w.runPlain(ctx, cmd.OutOrStdout(), opts)
	} else {
		err = w.runInteractive(ctx, opts.interval)
	}

	if err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("top: %w", err)
	}

	return nil
}

// runPlain prints one frame after each interval until ctx ends or writing fails, or a single frame with
// --once.
func (w *watcher) runPlain(ctx context.Context, out io.Writer, opts options) error {
	tick := w.clock.NewTicker(opts.interval)
	defer tick.Stop()

	for {
		current, err := w.takeSnapshot(ctx)
		if err != nil {
			return err
		}

		shown := current.tables[w.state.shownList]
		frame := append(w.state.renderHeader(current, plainWidth), "")
		frame = append(frame, screen.Table(shown.rows[:min(len(shown.rows), plainHeight)], shown.columns, plainWidth)...)

		if more := len(shown.rows) - plainHeight; more > 0 {
			frame = append(frame, fmt.Sprintf("and %d more", more))
		}

		if _, err := io.WriteString(out, strings.Join(frame, "\n")+"\n\n"); err != nil || opts.once {
			return nil
		}

		select {
		case <-ctx.Done():
			return nil
		case <-tick.C():
		}
	}
}

// takeSnapshot reads all objects from the view.
func (w *watcher) takeSnapshot(ctx context.Context) (snapshot, error) {
	now := w.clock.Now()

	summary, err := w.view.Summary(ctx, now)
	if err != nil {
		return snapshot{}, err
	}

	var (
		all    v1alpha1.RunnerJobList
		claims v1alpha1.MachineClaimList
	)

	if err := errors.Join(w.view.List(ctx, &all), w.view.List(ctx, &claims)); err != nil {
		return snapshot{}, fmt.Errorf("list jobs and machines: %w", err)
	}

	sorted := slices.Clone(all.Items)
	jobs.Sort(sorted)

	shown := make([]jobs.Job, 0, len(sorted))
	for i := range sorted {
		shown = append(shown, jobs.NewJob(&sorted[i], now))
	}

	machines := make([]machine, 0, len(claims.Items))

	for i := range claims.Items {
		claim := &claims.Items[i]
		machines = append(machines, machine{
			MachineClaim: claim, vm: jobs.NewVM(claim), pool: claim.PoolName(), job: live.MachineJob(claim),
			ageSeconds:     now.Sub(claim.CreationTimestamp.Time).Seconds(),
			phaseOrPending: cmp.Or(string(claim.Status.Phase), string(v1alpha1.MachineClaimPending)),
		})
	}

	slices.SortFunc(machines, func(a, b machine) int {
		return cmp.Or(cmp.Compare(a.pool, b.pool), cmp.Compare(b.ageSeconds, a.ageSeconds), cmp.Compare(a.Name, b.Name))
	})

	return snapshot{summary, [listCount]table{newPoolTable(summary.Pools), newMachineTable(machines), newJobTable(shown)}}, nil
}
