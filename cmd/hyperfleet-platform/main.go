// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Command hyperfleet-platform runs the programs of the fleet platform. Each of them is a subcommand: api,
// sentinel, adapter and sweep.
package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet-platform/adapter"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet-platform/api"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet-platform/sentinel"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet-platform/sweep"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int { return cli.Run(newCommand(), args) }

func newCommand() *cobra.Command {
	root := &cobra.Command{Use: "hyperfleet-platform", Short: "The fleet platform: API, Sentinel, adapter and sweep"}
	root.AddCommand(adapter.New(), api.New(), sentinel.New(), sweep.New())
	cli.AddVersion(root)

	return root
}
