// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package adapter

import "github.com/spf13/cobra"

// New returns the command `hyperfleet-platform adapter`.
func New() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "adapter",
		Short: "Validate and run an adapter, which creates objects on clusters for resources of the fleet API",
	}
	cmd.AddCommand(newServe(), newDryRun(), newValidate(), newConfigDump())

	return cmd
}
