// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package adapter

import (
	"encoding/json"

	"github.com/spf13/cobra"

	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
)

func newConfigDump() *cobra.Command {
	var output string

	spec := task.NewDeploymentSpec(false)

	cmd := &cobra.Command{
		Use:   "config-dump",
		Short: "Print the effective deployment configuration",
		Long: `Print the effective deployment configuration. Flags override HYPERFLEET_* environment
variables, variables override the file, and the file overrides the defaults. Header values and
passwords in URLs are redacted. --output text prints YAML.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := validateOutput(output); err != nil {
				return err
			}

			deployment, err := spec.Load(cmd.Flags())
			if err != nil {
				return err
			}

			redacted := task.Redact(deployment)

			if output == outputJSON {
				encoder := json.NewEncoder(cmd.OutOrStdout())
				encoder.SetIndent("", "  ")

				return encoder.Encode(redacted)
			}

			return strictyaml.Write(cmd.OutOrStdout(), redacted)
		},
	}

	// AddFlags fails only if the struct of the configuration is invalid. The tests find this error.
	if err := spec.AddFlags(cmd.Flags()); err != nil {
		cmd.RunE = func(*cobra.Command, []string) error { return err }
	}

	addOutputFlag(cmd, &output)

	return cmd
}
