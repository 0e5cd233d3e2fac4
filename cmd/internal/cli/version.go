// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"github.com/spf13/cobra"

	"github.com/hyperfleet/hyperfleet/cmd/internal/version"
)

// AddVersion adds the command version and the flag --version to a program. The flag prints one line. A
// longer version template of cobra would use reflection on methods, which keeps all unused code in the
// program (ADR 0057).
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
	cmd.Flags().StringVar(&output, "output", "text", "output format: text or json")
	root.AddCommand(cmd)

	root.Version = version.Read().Version
}
