// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package adapter

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
)

const (
	outputText = "text"
	outputJSON = "json"
)

// New makes the command.
func New() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "adapter",
		Short: "Check and run an adapter: what turns resources of the fleet API into objects on clusters",
	}
	cmd.AddCommand(newServe(), newDryRun(), newValidate(), newMigrate(), newConfigDump())

	return cmd
}

// outputFlag adds --output.
func outputFlag(cmd *cobra.Command, output *string) {
	cmd.Flags().StringVarP(output, "output", "o", outputText, "text or json")
}

func checkOutput(output string) error {
	if slices.Contains([]string{outputText, outputJSON}, output) {
		return nil
	}

	return cli.Usagef("unknown output %q: use text or json", output)
}
