// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package adapter

import (
	"github.com/spf13/cobra"

	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
)

func newConfigDump() *cobra.Command {
	var output cli.Output

	spec := task.NewDeploymentSpec(task.FileOptional)

	cmd := &cobra.Command{
		Use:   "config-dump",
		Short: "Print the effective deployment configuration",
		Long: `Print the effective deployment configuration. Flags override HYPERFLEET_* environment
variables, variables override the file, and the file overrides the defaults. Header values and
passwords in URLs are redacted.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			deployment, err := spec.Load(cmd.Flags())
			if err != nil {
				return err
			}

			return output.Print(cmd.OutOrStdout(), cli.Content{Data: task.Redact(deployment)})
		},
	}

	// AddFlags fails only if the struct of the configuration is invalid. The tests find this error.
	if err := spec.AddFlags(cmd.Flags()); err != nil {
		cmd.RunE = func(*cobra.Command, []string) error { return err }
	}

	output.AddFlag(cmd, cli.OutputYAML, cli.OutputJSON)

	return cmd
}
