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

	spec := task.Deployment(false)

	cmd := &cobra.Command{
		Use:   "config-dump",
		Short: "Print the deployment configuration that file, environment and flags give",
		Long: `Print the deployment configuration as it is in force: the file, over it HYPERFLEET_*
variables, over them flags, over the defaults. Values of headers and passwords in URLs are
left out. --output text prints YAML.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}

			deployment, err := spec.Load(cmd.Flags())
			if err != nil {
				return err
			}

			shown := task.Redacted(deployment)

			if output == outputJSON {
				encoder := json.NewEncoder(cmd.OutOrStdout())
				encoder.SetIndent("", "  ")

				return encoder.Encode(shown)
			}

			return strictyaml.Write(cmd.OutOrStdout(), shown)
		},
	}

	// The keys of the deployment are flags; the error is about the struct, and a test's.
	if err := spec.AddFlags(cmd.Flags()); err != nil {
		cmd.RunE = func(*cobra.Command, []string) error { return err }
	}

	outputFlag(cmd, &output)

	return cmd
}
