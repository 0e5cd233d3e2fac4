// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package shell

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/cmd/internal/signals"
)

// escape is the key that closes a console, Ctrl-], as in virsh and telnet.
const escape = 0x1d

// New returns the command `hyperfleet shell`.
func New() *cobra.Command {
	var o options

	cmd := &cobra.Command{
		Use:   "shell CLAIM [-- COMMAND...]",
		Short: "Run commands in a machine, by its guest agent",
		Long: `Run a command in the machine of a MachineClaim, as root, by the guest agent. Without a command, read
commands line by line, and run each in a shell of its own. A command has no input and no terminal, its
output is shown when it ends, and it may take at most 90 seconds.

You need the permission for the verb get on machineclaims/shell. Every command is an event of the claim.`,
		Example: "  hyperfleet shell -n ci linux-x7k2p -- journalctl -b -u hyperfleet-bootstrap\n  hyperfleet shell -n ci linux-x7k2p",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signals.NotifyContext(cmd.Context())
			defer stop()

			operator, err := o.connect(ctx, args[0])
			if err != nil {
				return fmt.Errorf("shell: %w", err)
			}

			if len(args) > 1 {
				code, err := operator.run(ctx, args[1:], cmd.OutOrStdout(), cmd.ErrOrStderr())
				if err != nil {
					return fmt.Errorf("shell: %w", err)
				}

				if code != 0 {
					return cli.WithCode(nil, code)
				}

				return nil
			}

			return operator.readCommands(ctx, cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	o.addFlags(cmd)

	return cmd
}

// readCommands runs each line of the input in a shell, until the input ends.
func (c *connection) readCommands(ctx context.Context, in io.Reader, out, errOut io.Writer) error {
	lines := bufio.NewScanner(in)

	for {
		_, _ = fmt.Fprintf(errOut, "%s# ", c.claim)

		if !lines.Scan() {
			_, _ = fmt.Fprintln(errOut)

			return lines.Err()
		}

		line := strings.TrimSpace(lines.Text())
		if line == "exit" {
			return nil
		}

		if line == "" {
			continue
		}

		code, err := c.run(ctx, []string{"/bin/sh", "-c", line}, out, errOut)

		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			_, _ = fmt.Fprintln(errOut, cli.Sanitize(err.Error()))
		case code != 0:
			_, _ = fmt.Fprintf(errOut, "the command ended with code %d\n", code)
		}
	}
}

// NewConsole returns the command `hyperfleet console`.
func NewConsole() *cobra.Command {
	var o options

	cmd := &cobra.Command{
		Use:   "console CLAIM",
		Short: "Open the live serial console of a machine",
		Long: `Open the serial console of the machine of a MachineClaim. Close it with Ctrl-]. The console shows what the
machine writes from now on. On libvirt, other users who have the console open lose it. On Proxmox VE, the
console stays empty until the other user closes it.

You need the permission for the verb get on machineclaims/shell. Every use is an event of the claim.`,
		Example: "  hyperfleet console -n ci linux-x7k2p",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signals.NotifyContext(cmd.Context())
			defer stop()

			operator, err := o.connect(ctx, args[0])
			if err != nil {
				return fmt.Errorf("console: %w", err)
			}

			stream, err := operator.openConsole(ctx)
			if err != nil {
				return fmt.Errorf("console: %w", err)
			}
			defer stream.Close() //nolint:errcheck // the console is closed

			if restore, err := makeRaw(cmd.InOrStdin()); err == nil {
				defer restore()
			}

			_, _ = fmt.Fprint(cmd.ErrOrStderr(), "connected to the console of "+args[0]+": press Ctrl-] to close it\r\n")

			return relay(ctx, stream, cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	o.addFlags(cmd)

	return cmd
}

// makeRaw passes each key of a terminal on as it is.
func makeRaw(in io.Reader) (restore func(), err error) {
	file, ok := in.(*os.File)
	if !ok {
		return func() {}, nil
	}

	state, err := term.MakeRaw(int(file.Fd()))
	if err != nil {
		return nil, err
	}

	return func() { _ = term.Restore(int(file.Fd()), state) }, nil
}

// relay copies the console's output until it ends, or until the input has the escape key.
func relay(ctx context.Context, stream io.ReadWriteCloser, in io.Reader, out io.Writer) error {
	ended := make(chan error, 1)

	go func() {
		_, err := io.Copy(out, stream)
		ended <- err
	}()

	closed := make(chan struct{})

	go func() {
		buffer := make([]byte, 1024) //nolint:mnd // typed text

		for {
			n, err := in.Read(buffer)
			text, _, isEscaped := strings.Cut(string(buffer[:n]), string(rune(escape)))
			_, _ = io.WriteString(stream, text)

			if isEscaped {
				close(closed)

				return
			}

			if err != nil {
				return // the output continues without input
			}
		}
	}()

	select {
	case err := <-ended:
		return err
	case <-closed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
