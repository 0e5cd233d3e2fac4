// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet-platform/api"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet-platform/sentinel"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/platform/migrate"
)

// New returns the command `hyperfleet-platform migrate`.
func New() *cobra.Command {
	return &cobra.Command{
		Use:   "migrate FILE",
		Short: "Convert a file of the upstream HyperFleet project",
		Long: `Convert a configuration of the upstream HyperFleet project to the format of this project: of the
API, of Sentinel, of the broker or of an adapter, a task file, or the values of a Helm chart. The
command finds the kind of the file from its keys, and does not change the file. It prints the
converted text to standard output. It prints what was left out or added, the differences in
behavior, and the problems that you must fix to standard error, each with its line.

The exit code is 0 if no problems are left, 1 if problems are left, and 2 if the command line is
invalid.`,
		Example: "  hyperfleet-platform migrate upstream/config.yaml > config.yaml",
		RunE: func(cmd *cobra.Command, files []string) error {
			if len(files) != 1 {
				return cli.Usage(errors.New("pass exactly one file"))
			}

			result, err := migrate.File(files[0], migrate.Checks{API: api.CheckText, Sentinel: sentinel.CheckText})
			if err != nil {
				return err
			}

			if _, err := cmd.OutOrStdout().Write(result.Text); err != nil {
				return fmt.Errorf("print file: %w", err)
			}

			cmd.PrintErrln("file:", result.Kind)

			for _, note := range result.Notes {
				cmd.PrintErrln("note:", note)
			}

			for _, problem := range result.Left {
				cmd.PrintErrln("left:", problem)
			}

			if len(result.Left) > 0 {
				return cli.Failed()
			}

			return nil
		},
	}
}
