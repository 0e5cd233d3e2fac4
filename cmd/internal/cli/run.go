// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

// Run runs the root command of a program and returns its exit code. args does not include the name of the
// program. Run prints an error to standard error, with the name of the program as its prefix. An error can quote
// other systems, so it is sanitized.
func Run(root *cobra.Command, args []string) int {
	root.SilenceUsage, root.SilenceErrors = true, true
	root.SetArgs(args)
	wrapHelp(root)

	cmd, err := root.ExecuteC()
	if err == nil {
		return 0
	}

	err = suggestFlag(cmd, suggestCommand(cmd, err))

	if text := err.Error(); text != "" {
		fmt.Fprintf(os.Stderr, "%s: %s\n", root.Name(), Sanitize(text))
	}

	return ExitCode(err)
}

// suggestCommand replaces cobra's error for an unknown command or an unexpected argument by a one-line
// usage error, which suggests a similar command. It returns all other errors unchanged.
func suggestCommand(cmd *cobra.Command, err error) error {
	var name string
	if _, scanErr := fmt.Sscanf(err.Error(), "unknown command %q for", &name); scanErr != nil {
		return err
	}

	if !cmd.HasSubCommands() {
		return Usagef("unexpected argument %s (see %s --help)", name, cmd.CommandPath())
	}

	var known []string

	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			known = append(known, sub.Name())
		}
	}

	return Usagef("unknown command %s (%s)", name, cmp.Or(strictyaml.SuggestName(name, known), "see "+cmd.CommandPath()+" --help"))
}

// suggestFlag turns the error for an unknown flag into a usage error and adds a similar flag to it. It
// returns all other errors unchanged.
func suggestFlag(cmd *cobra.Command, err error) error {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok {
		return err
	}

	var known []string

	cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		if !flag.Hidden {
			known = append(known, "--"+flag.Name)
		}
	})

	if hint := strictyaml.SuggestName("--"+unknown.GetSpecifiedName(), known); hint != "" {
		return Usagef("%w (%s)", err, hint)
	}

	return Usagef("%w (see %s --help)", err, cmd.CommandPath())
}
