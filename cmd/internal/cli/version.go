// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"github.com/spf13/cobra"

	"github.com/hyperfleet/hyperfleet/cmd/internal/version"
)

// AddVersion gives a program the command version, and --version, in one line: a template of cobra's
// for more would link what reflects on methods, and with it all code that nothing calls (ADR 0057).
func AddVersion(root *cobra.Command) {
	var output string

	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version, the commit and the Go version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return version.Read().Print(cmd.OutOrStdout(), output)
		},
	}
	cmd.Flags().StringVar(&output, "output", "text", "text or json")
	root.AddCommand(cmd)

	root.Version = version.Read().Version
}
