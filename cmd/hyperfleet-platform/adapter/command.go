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

// New returns the command `hyperfleet-platform adapter`.
func New() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "adapter",
		Short: "Validate and run an adapter, which creates objects on clusters for resources of the fleet API",
	}
	cmd.AddCommand(newServe(), newDryRun(), newValidate(), newMigrate(), newConfigDump())

	return cmd
}

// addOutputFlag adds --output.
func addOutputFlag(cmd *cobra.Command, output *string) {
	cmd.Flags().StringVarP(output, "output", "o", outputText, "output format: text or json")
}

func validateOutput(output string) error {
	if slices.Contains([]string{outputText, outputJSON}, output) {
		return nil
	}

	return cli.Usagef("unknown output %q: use text or json", output)
}
