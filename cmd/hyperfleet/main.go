// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Command hyperfleet is the operator, and what people who run it look at it with.
package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/addresses"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/doctor"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/hosts"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/jobs"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/operator"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/setup"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/top"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/uninstall"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/web"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
)

func main() { os.Exit(cli.Run(command(), os.Args[1:])) }

func command() *cobra.Command {
	root := &cobra.Command{Use: "hyperfleet", Short: "One control plane for fleets of machines and clusters"}
	root.AddCommand(operator.New(), setup.New(), doctor.New(), hosts.New(), jobs.New(), jobs.NewOne(), addresses.New(),
		top.New(), web.New(), uninstall.New())
	cli.AddVersion(root)

	return root
}
