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
		Short: "Rewrite a task file or configuration of upstream's adapter as this one reads it",
		Long: `Rewrite a task file or a deployment configuration of upstream's adapter. The file stays as
it is: the new text is on standard output, and what was changed, what works in another way,
and what is left to do, on standard error.

It ends with 0 if nothing is left, 1 if something is, 2 for an invalid command line.`,
		RunE: func(cmd *cobra.Command, files []string) error {
			if len(files) != 1 {
				return cli.Usage(errors.New("name one file"))
			}

			done, err := task.Migrate(files[0])
			if err != nil {
				return err
			}

			if _, err := cmd.OutOrStdout().Write(done.Text); err != nil {
				return fmt.Errorf("print file: %w", err)
			}

			for _, change := range done.Changes {
				cmd.PrintErrln("note:", change)
			}

			for _, problem := range done.Left {
				cmd.PrintErrln("left:", problem)
			}

			if len(done.Left) > 0 {
				return cli.Failed()
			}

			return nil
		},
	}
}
