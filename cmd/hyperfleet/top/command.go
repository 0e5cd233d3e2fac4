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
	// Sizes of a frame without a terminal.
	plainWidth, plainHeight = 160, 40
	// leastInterval keeps a terminal from flickering.
	leastInterval = 200 * time.Millisecond
)

type condition = metav1.Condition

// options are the command's flags.
type options struct {
	cli.Kube

	interval time.Duration
	once     bool
	list     string
}

// New makes the command.
func New() *cobra.Command {
	var opts options

	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show pools, machines and jobs in the terminal, as they are now, and why each waits",
		Long: `Show a cluster's pools, machines and jobs, renewed all the time, with what each waits for. Enter
looks into the one that is chosen. Without a terminal, the list is printed again and again.

The exit code is 0 after q or an interrupt; 1 if the API server does not answer; 2 if the command
line is invalid.`,
		Example: "  hyperfleet top\n  hyperfleet top -n ci --list jobs\n  hyperfleet top --once --list pools",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			list := slices.Index([]string{"pools", "machines", "jobs"}, opts.list)
			if list < 0 {
				return cli.Usagef("top: unknown list %q: use pools, machines or jobs", opts.list)
			}

			if opts.interval < leastInterval {
				return cli.Usagef("top: --interval must be at least %s", leastInterval)
			}

			return run(cmd, opts, list)
		},
	}
	flags := cmd.Flags()
	opts.AddFlags(flags, "what is shown")
	flags.Lookup("namespace").Usage = "namespace that is shown; default: all"
	flags.DurationVar(&opts.interval, "interval", time.Second, "time between two frames")
	flags.BoolVar(&opts.once, "once", false, "print one frame and end")
	flags.StringVar(&opts.list, "list", "pools", "what is shown first: pools, machines or jobs")
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cli.Usage(err) })

	return cmd
}

// watcher is one run of the command.
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

	w := &watcher{view: view, clock: clock.RealClock{}, state: state{where: view.Server, list: list}}

	in, hasIn := cmd.InOrStdin().(*os.File)
	out, hasOut := cmd.OutOrStdout().(*os.File)

	if opts.once || !hasIn || !hasOut || !screen.IsTerminal(in) || !screen.IsTerminal(out) {
		err = w.plain(ctx, cmd.OutOrStdout(), opts)
	} else {
		err = w.live(ctx, in, out, opts.interval)
	}

	if err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("top: %w", err)
	}

	return nil
}

// plain prints frames one below the other.
func (w *watcher) plain(ctx context.Context, out io.Writer, opts options) error {
	tick := w.clock.NewTicker(opts.interval)
	defer tick.Stop()

	for {
		now, err := w.now(ctx)
		if err != nil {
			return err
		}

		frame := append(w.state.head(now, plainWidth), "")
		frame = append(frame, now.table(w.state.list, 0, min(now.rows(w.state.list), plainHeight), plainWidth)...)

		if more := now.rows(w.state.list) - plainHeight; more > 0 {
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

// live draws on a terminal's other screen, and gives it back as it was.
func (w *watcher) live(ctx context.Context, in, out *os.File, interval time.Duration) error {
	before, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return fmt.Errorf("read keys: %w", err)
	}

	write := func(text string) { _, _ = out.WriteString(text) }

	write(screen.OtherOn + screen.HideCursor)

	defer func() {
		write(screen.ShowCursor + screen.OtherOff)

		_ = term.Restore(int(in.Fd()), before)
	}()

	keys := make(chan string)
	go readKeys(ctx, in, keys)

	tick := w.clock.NewTicker(interval)
	defer tick.Stop()

	for {
		now, err := w.now(ctx)
		if err != nil {
			return err
		}

		width, height := screen.Size(out)
		write(frame(w.state.render(now, width, height)))

		select {
		case <-ctx.Done():
			return nil
		case <-tick.C():
		case key := <-keys:
			if key == keyQuit {
				return nil
			}

			if w.state.press(key, now) {
				w.state.detail, w.state.scroll = w.detail(ctx, now), 0
			}
		}
	}
}

// frame is what replaces the screen at one stroke.
func frame(lines []string) string {
	var out strings.Builder

	out.WriteString(screen.HoldFrame + screen.Home)

	for i, line := range lines {
		if i > 0 {
			out.WriteString("\r\n")
		}

		out.WriteString(line + screen.EraseLine)
	}

	out.WriteString(screen.EraseBelow + screen.ShowFrame)

	return out.String()
}

// readKeys reads keys until the terminal or the context ends.
func readKeys(ctx context.Context, in io.Reader, keys chan<- string) {
	buffer := make([]byte, 32)

	for {
		n, err := in.Read(buffer)
		if err != nil {
			return
		}

		for _, key := range keysOf(string(buffer[:n])) {
			select {
			case <-ctx.Done():
				return
			case keys <- key:
			}
		}
	}
}

// keysOf reads what a terminal sends (xterm's sequences, and the letters of vi).
func keysOf(text string) []string {
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
		at := slices.IndexFunc(sequences, func(s struct{ sent, key string }) bool { return strings.HasPrefix(text, s.sent) })
		if at < 0 {
			text = text[1:]

			continue
		}

		out = append(out, sequences[at].key)
		text = text[len(sequences[at].sent):]
	}

	return out
}

// now reads what there is.
func (w *watcher) now(ctx context.Context) (moment, error) {
	at := w.clock.Now()

	summary, err := w.view.Summary(ctx, at)
	if err != nil {
		return moment{}, err
	}

	var (
		all    v1alpha1.RunnerJobList
		claims v1alpha1.MachineClaimList
	)

	if err := errors.Join(w.view.List(ctx, &all), w.view.List(ctx, &claims)); err != nil {
		return moment{}, fmt.Errorf("list jobs and machines: %w", err)
	}

	out := moment{summary: summary}
	sorted := slices.Clone(all.Items)
	jobs.Sort(sorted)

	for i := range sorted {
		out.jobs = append(out.jobs, jobs.View(&sorted[i], at))
	}

	for i := range claims.Items {
		claim := &claims.Items[i]
		one := machine{VM: jobs.VMOf(claim), Namespace: claim.Namespace, Age: at.Sub(claim.CreationTimestamp.Time)}

		if ref := claim.Spec.RunnerPoolRef; ref != nil {
			one.Pool = ref.Name
		}

		if info := claim.Status.BootstrapInfo; info != nil {
			one.Job = cmp.Or(info.Job, info.BoundJob)
		}

		out.machines = append(out.machines, one)
	}

	slices.SortFunc(out.machines, func(a, b machine) int {
		return cmp.Or(cmp.Compare(a.Pool, b.Pool), cmp.Compare(b.Age, a.Age), cmp.Compare(a.Claim, b.Claim))
	})

	return out, nil
}

// detail tells all about what is chosen.
func (w *watcher) detail(ctx context.Context, now moment) []string {
	at := w.state.chosen(now)

	switch w.state.list {
	case listPools:
		return poolDetail(now.summary.Pools[at])
	case listMachines:
		var claim v1alpha1.MachineClaim

		key := client.ObjectKey{Namespace: now.machines[at].Namespace, Name: now.machines[at].Claim}
		if err := w.view.Get(ctx, key, &claim); err != nil {
			return []string{"The machine is gone."}
		}

		return machineDetail(&claim)
	default:
		key := client.ObjectKey{Namespace: now.jobs[at].Namespace, Name: now.jobs[at].Job}

		of, err := jobs.Explain(ctx, w.view, w.view.Live, key, w.clock.Now())
		if err != nil {
			return []string{cli.Line(err.Error())}
		}

		var out bytes.Buffer

		jobs.Write(&out, of, w.clock.Now(), time.Local) //nolint:gosmopolitan // people read their own time

		return strings.Split(strings.TrimRight(out.String(), "\n"), "\n")
	}
}
