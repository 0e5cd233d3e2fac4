// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package root

import (
	"github.com/spf13/cobra"

	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet-platform/adapter"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet-platform/api"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet-platform/migrate"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet-platform/sentinel"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet-platform/sweep"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
)

// New returns the command `hyperfleet-platform` with all its subcommands.
func New() *cobra.Command {
	root := &cobra.Command{Use: "hyperfleet-platform", Short: "The fleet platform: API, Sentinel, adapter and sweep"}
	adapters := adapter.New()
	former := migrate.New()
	former.Deprecated = "use `hyperfleet-platform migrate`"
	adapters.AddCommand(former)
	root.AddCommand(adapters, api.New(), migrate.New(), sentinel.New(), sweep.New())
	cli.AddVersion(root)

	return root
}
