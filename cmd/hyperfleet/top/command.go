// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package top

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/jobs"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/live"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/cmd/internal/screen"
)

const (
	// plainWidth and plainHeight are the width of a frame and the maximum number of its rows without a
	// terminal.
	plainWidth, plainHeight = 160, 40
	// minInterval prevents the terminal from flickering.
	minInterval = 200 * time.Millisecond
)

type condition = metav1.Condition

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
Press Enter to show the details of the selected row. Without a terminal, the command prints the list
again after each interval.

The exit code is 0 after q or an interrupt; 1 if the API server does not respond; 2 if the command
line is invalid.`,
		Example: "  hyperfleet top\n  hyperfleet top -n ci --list jobs\n  hyperfleet top --once --list pools",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			list := slices.Index([]string{"pools", "machines", "jobs"}, opts.list)
			if list < 0 {
				return cli.Usagef("top: unknown list %q: use pools, machines or jobs", opts.list)
			}

			if opts.interval < minInterval {
				return cli.Usagef("top: --interval must be at least %s", minInterval)
			}

			return run(cmd, opts, list)
		},
	}
	flags := cmd.Flags()
	opts.AddFlags(flags, "the objects")
	flags.Lookup("namespace").Usage = "namespace of the objects to show; default: all namespaces"
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
}

func run(cmd *cobra.Command, opts options, list int) error {
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()

	view, err := live.Connect(ctx, opts.Kube)
	if err != nil {
		return fmt.Errorf("top: %w", err)
	}

	w := &watcher{view: view, clock: clock.RealClock{}, state: state{server: view.Server, list: list}}

	in, isInFile := cmd.InOrStdin().(*os.File)
	out, isOutFile := cmd.OutOrStdout().(*os.File)

	if opts.once || !isInFile || !isOutFile || !screen.IsTerminal(in) || !screen.IsTerminal(out) {
		err = w.runPlain(ctx, cmd.OutOrStdout(), opts)
	} else {
		err = w.runInteractive(ctx, in, out, opts.interval)
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
		now, err := w.takeSnapshot(ctx)
		if err != nil {
			return err
		}

		frame := append(w.state.renderHeader(now, plainWidth), "")
		frame = append(frame, now.renderTable(w.state.list, 0, min(now.rowCount(w.state.list), plainHeight), plainWidth)...)

		if more := now.rowCount(w.state.list) - plainHeight; more > 0 {
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

// runInteractive draws frames on the alternate screen of the terminal and handles keys, until the user quits
// or ctx ends. It then restores the terminal.
func (w *watcher) runInteractive(ctx context.Context, in, out *os.File, interval time.Duration) error {
	previous, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return fmt.Errorf("set terminal to raw mode: %w", err)
	}

	write := func(text string) { _, _ = out.WriteString(text) }

	write(screen.EnterAlternateScreen + screen.HideCursor)

	defer func() {
		write(screen.ShowCursor + screen.LeaveAlternateScreen)

		_ = term.Restore(int(in.Fd()), previous)
	}()

	keys := make(chan string)
	go readKeys(ctx, in, keys)

	tick := w.clock.NewTicker(interval)
	defer tick.Stop()

	for {
		now, err := w.takeSnapshot(ctx)
		if err != nil {
			return err
		}

		width, height := screen.Size(out)
		write(renderFrame(w.state.render(now, width, height)))

		select {
		case <-ctx.Done():
			return nil
		case <-tick.C():
		case key := <-keys:
			if key == keyQuit {
				return nil
			}

			if w.state.handleKey(key, now) {
				w.state.detail, w.state.scroll = w.loadDetail(ctx, now), 0
			}
		}
	}
}

// renderFrame returns the text and the control sequences that replace the whole screen without flicker.
func renderFrame(lines []string) string {
	var out strings.Builder

	out.WriteString(screen.BeginFrame + screen.Home)

	for i, line := range lines {
		if i > 0 {
			out.WriteString("\r\n")
		}

		out.WriteString(line + screen.EraseLine)
	}

	out.WriteString(screen.EraseBelow + screen.EndFrame)

	return out.String()
}

// readKeys sends the keys that the user presses until reading fails or ctx ends.
func readKeys(ctx context.Context, in io.Reader, keys chan<- string) {
	buffer := make([]byte, 32)

	for {
		n, err := in.Read(buffer)
		if err != nil {
			return
		}

		for _, key := range parseKeys(string(buffer[:n])) {
			select {
			case <-ctx.Done():
				return
			case keys <- key:
			}
		}
	}
}

// parseKeys returns the keys for the bytes that a terminal sends: xterm's sequences and the letters of vi. It
// ignores unknown bytes.
func parseKeys(text string) []string {
	sequences := []struct{ sent, key string }{
		{
			"\x1b[A",
			keyUp,
		},
		{"\x1b[B", keyDown},
		{"\x1bOA", keyUp},
		{"\x1bOB", keyDown},
		{"\x1b[5~", keyPageUp},
		{"\x1b[6~", keyPageDown},
		{"\x1b[D", keyBack},
		{"\x1b[C", keyEnter},
		{"\x1b", keyBack},
		{"\x7f", keyBack},
		{"h", keyBack},
		{"k", keyUp},
		{"j", keyDown},
		{"\r", keyEnter},
		{"\n", keyEnter},
		{"l", keyEnter},
		{"\t", keyNext},
		{"q", keyQuit},
		{"\x03", keyQuit},
		{"\x04", keyQuit},
		{"1", "1"},
		{"2", "2"},
		{"3", "3"},
	}

	var out []string

	for text != "" {
		i := slices.IndexFunc(sequences, func(s struct{ sent, key string }) bool { return strings.HasPrefix(text, s.sent) })
		if i < 0 {
			text = text[1:]

			continue
		}

		out = append(out, sequences[i].key)
		text = text[len(sequences[i].sent):]
	}

	return out
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

	out := snapshot{summary: summary}
	sorted := slices.Clone(all.Items)
	jobs.Sort(sorted)

	for i := range sorted {
		out.jobs = append(out.jobs, jobs.NewJob(&sorted[i], now))
	}

	for i := range claims.Items {
		claim := &claims.Items[i]
		m := machine{VM: jobs.NewVM(claim), Namespace: claim.Namespace, Age: now.Sub(claim.CreationTimestamp.Time)}

		if ref := claim.Spec.RunnerPoolRef; ref != nil {
			m.Pool = ref.Name
		}

		if info := claim.Status.BootstrapInfo; info != nil {
			m.Job = cmp.Or(info.Job, info.BoundJob)
		}

		out.machines = append(out.machines, m)
	}

	slices.SortFunc(out.machines, func(a, b machine) int {
		return cmp.Or(cmp.Compare(a.Pool, b.Pool), cmp.Compare(b.Age, a.Age), cmp.Compare(a.Claim, b.Claim))
	})

	return out, nil
}

// loadDetail returns the lines of the details of the selected row.
func (w *watcher) loadDetail(ctx context.Context, now snapshot) []string {
	row := w.state.selectedRow(now)

	switch w.state.list {
	case listPools:
		return formatPool(now.summary.Pools[row])
	case listMachines:
		var claim v1alpha1.MachineClaim

		key := client.ObjectKey{Namespace: now.machines[row].Namespace, Name: now.machines[row].Claim}
		if err := w.view.Get(ctx, key, &claim); err != nil {
			return []string{"The machine was deleted."}
		}

		return formatMachine(&claim)
	default:
		key := client.ObjectKey{Namespace: now.jobs[row].Namespace, Name: now.jobs[row].Job}

		details, err := jobs.LoadDetails(ctx, w.view, w.view.APIClient, key, w.clock.Now())
		if err != nil {
			return []string{cli.SanitizeLine(err.Error())}
		}

		var out bytes.Buffer

		jobs.WriteDetails(&out, details, time.Local) //nolint:gosmopolitan // times are in the user's time zone

		return strings.Split(strings.TrimRight(out.String(), "\n"), "\n")
	}
}
