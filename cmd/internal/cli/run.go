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

// Run runs a program's command with the arguments behind the program's name, and gives its
// exit code. An error is told on standard error, in one line that begins with the program.
func Run(root *cobra.Command, args []string) int {
	root.SilenceUsage, root.SilenceErrors = true, true
	root.SetArgs(args)

	cmd, err := root.ExecuteC()
	if err == nil {
		return 0
	}

	err = suggest(cmd, meant(cmd, err))

	if text := err.Error(); text != "" {
		fmt.Fprintf(os.Stderr, "%s: %s\n", root.Name(), text)
	}

	return ExitCode(err)
}

// meant is the error of a command or an argument that there is not, with the command that was
// meant: cobra's has lines of its own, and is none of the command line.
func meant(cmd *cobra.Command, err error) error {
	var given string
	if _, other := fmt.Sscanf(err.Error(), "unknown command %q for", &given); other != nil {
		return err
	}

	if !cmd.HasSubCommands() {
		return Usagef("unexpected argument %s (%s --help says what it takes)", given, cmd.CommandPath())
	}

	var known []string

	for _, one := range cmd.Commands() {
		if one.IsAvailableCommand() {
			known = append(known, one.Name())
		}
	}

	return Usagef("unknown command %s (%s)", given, cmp.Or(strictyaml.Nearest(given, known), cmd.CommandPath()+" --help lists them"))
}

// suggest adds the flag that was meant to the error of one that there is not. It is an error
// of the command line, whatever the command takes it for.
func suggest(cmd *cobra.Command, err error) error {
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

	if hint := strictyaml.Nearest("--"+unknown.GetSpecifiedName(), known); hint != "" {
		return Usagef("%w (%s)", err, hint)
	}

	return Usagef("%w (%s --help lists them)", err, cmd.CommandPath())
}
