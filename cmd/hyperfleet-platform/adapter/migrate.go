// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package adapter

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
)

func newMigrate() *cobra.Command {
	return &cobra.Command{
		Use:   "migrate FILE",
		Short: "Convert a task file or a configuration of the upstream adapter",
		Long: `Convert a task file or a deployment configuration of the upstream adapter to the format of this
adapter. The command does not change the file. It prints the converted text to standard output.
It prints the changes, the differences in behavior, and the problems that you must fix to
standard error.

The exit code is 0 if no problems are left, 1 if problems are left, and 2 if the command line is
invalid.`,
		RunE: func(cmd *cobra.Command, files []string) error {
			if len(files) != 1 {
				return cli.Usage(errors.New("pass exactly one file"))
			}

			result, err := task.Migrate(files[0])
			if err != nil {
				return err
			}

			if _, err := cmd.OutOrStdout().Write(result.Text); err != nil {
				return fmt.Errorf("print file: %w", err)
			}

			for _, change := range result.Changes {
				cmd.PrintErrln("note:", change)
			}

			for _, problem := range result.Remaining {
				cmd.PrintErrln("left:", problem)
			}

			if len(result.Remaining) > 0 {
				return cli.Failed()
			}

			return nil
		},
	}
}
