// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
)

// Run runs a program's command with the arguments behind the program's name, and gives its
// exit code. An error is told on standard error, in one line that begins with the program.
func Run(root *cobra.Command, args []string) int {
	root.SilenceUsage, root.SilenceErrors = true, true
	root.SetArgs(args)

	err := root.Execute()
	if err == nil {
		return 0
	}

	if text := err.Error(); text != "" {
		fmt.Fprintf(os.Stderr, "%s: %s\n", root.Name(), text)
	}

	return ExitCode(err)
}
