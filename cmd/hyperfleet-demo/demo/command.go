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

// exitInterrupted is the exit code after an interrupt, as shells have it.
const exitInterrupted = 130

// errInterrupted is the cause of a run that a signal ended.
var errInterrupted = cli.WithCode(errors.New("interrupted"), exitInterrupted)

// errFailed is a run that did not pass and has said so.
var errFailed = cli.Failed()

// New makes the command.
func New() *cobra.Command {
	var options Options

	cmd := &cobra.Command{
		Use:   "hyperfleet-demo",
		Short: "Give every one of some CI jobs a fresh VM, on simulated hardware on this machine",
		Long: `Starts a Kubernetes API server, a simulated Proxmox VE cluster, a simulated CI platform and
the operator on loopback addresses of this machine, each as a process of its own. Queues CI
jobs, shows the machines that they get, and checks that nothing is left of them.

The exit code is 0 only if every job ran and no VM, claim, runner or ISO is left; 1 if not;
130 after an interrupt. With --hold everything is kept running after the jobs, to look around,
and an interrupt is its normal end.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find this executable: %w", err)
			}

			options.settle(cmd.Flags().Changed, filepath.Dir(self))

			if err := options.validate(); err != nil {
				return err
			}

			return interruptible(cmd.Context(), func(ctx context.Context) error {
				return run(ctx, options, cmd.OutOrStdout(), progressTo(cmd, options))
			})
		},
	}
	options.bind(cmd.Flags())

	return cmd
}

// progressTo keeps standard output for the report alone where that is for programs.
func progressTo(cmd *cobra.Command, o Options) io.Writer {
	if o.Output == outputJSON {
		return cmd.ErrOrStderr()
	}

	return cmd.OutOrStdout()
}

// interruptible ends do's context with errInterrupted at SIGINT and SIGTERM. do then
// stops what it started and says what it means for the exit code; a second signal ends the process at once, and the
// kernel its children with it.
func interruptible(parent context.Context, do func(context.Context) error) error {
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
