// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/hyperfleet/hyperfleet/cmd/internal/version"
)

// AddVersion adds the command version and the flag --version to a program. The flag prints one line. A
// longer version template of cobra would use reflection on methods, which keeps all unused code in the
// program (ADR 0057).
func AddVersion(root *cobra.Command) {
	var output Output

	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version, the commit and the Go version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			info := version.Read()

			return output.Print(cmd.OutOrStdout(), Content{Data: info, Print: func(out io.Writer, _ bool) error {
				_, err := fmt.Fprintln(out, info)

				return err
			}})
		},
	}
	output.AddFlag(cmd, OutputText, OutputJSON, OutputYAML)
	root.AddCommand(cmd)

	root.Version = version.Read().Version
}
