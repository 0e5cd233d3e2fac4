// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
)

// exitInterrupted is the exit code after an interrupt. Shells use the same code for SIGINT.
const exitInterrupted = 130

// errInterrupted is the cancellation cause of the run's context after SIGINT or SIGTERM.
var errInterrupted = cli.WithCode(errors.New("interrupted"), exitInterrupted)

// errFailed is returned by a run that did not pass and has already printed the reasons.
var errFailed = cli.Failed()

// New returns the command `hyperfleet-demo`.
func New() *cobra.Command {
	var options Options

	cmd := &cobra.Command{
		Use:   "hyperfleet-demo",
		Short: "Run CI jobs in fresh VMs, on simulated hardware on this computer",
		Long: `Starts a Kubernetes API server, a simulated Proxmox VE cluster, a simulated CI platform and
the operator, each as a separate process on a loopback address. Queues CI jobs, shows the machine
of each job, and checks that all machines are deleted afterwards.

The exit code is 0 if every job succeeded and no VM, claim, runner or ISO is left, and 1 otherwise.
After an interrupt, the exit code is 130. With --hold, all processes keep running after the jobs, so
that you can inspect them. In that case, stop the demo with an interrupt.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find this executable: %w", err)
			}

			options.setDefaults(cmd.Flags().Changed, filepath.Dir(self))

			if err := options.validate(); err != nil {
				return err
			}

			return runInterruptible(cmd.Context(), func(ctx context.Context) error {
				return run(ctx, options, cmd.OutOrStdout(), progressWriter(cmd, options))
			})
		},
	}
	options.bind(cmd.Flags())

	return cmd
}

// progressWriter returns the writer for progress lines. With --output json, progress goes to standard
// error, so that standard output has the report only.
func progressWriter(cmd *cobra.Command, o Options) io.Writer {
	if o.Output == outputJSON {
		return cmd.ErrOrStderr()
	}

	return cmd.OutOrStdout()
}

// runInterruptible calls do and cancels its context with errInterrupted on the first SIGINT or SIGTERM.
// do then stops its child processes, and its error decides the exit code. A second signal kills the
// process immediately, and the kernel kills the child processes with it.
func runInterruptible(parent context.Context, do func(context.Context) error) error {
	if parent == nil {
		parent = context.Background()
	}

	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)

	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)

	defer signal.Stop(signals)

	go func() {
		select {
		case <-signals:
			signal.Stop(signals)
			cancel(errInterrupted)
		case <-ctx.Done():
		}
	}()

	return do(ctx)
}
