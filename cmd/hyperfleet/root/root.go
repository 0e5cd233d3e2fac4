// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package root

import (
	"github.com/spf13/cobra"

	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/addresses"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/doctor"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/hosts"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/jobs"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/operator"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/provider"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/setup"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/shell"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/top"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/uninstall"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/web"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
)

// New returns the command `hyperfleet` with all its subcommands.
func New() *cobra.Command {
	root := &cobra.Command{Use: "hyperfleet", Short: "One control plane for fleets of machines and clusters"}
	root.AddCommand(operator.New(), setup.New(), doctor.New(), hosts.New(), jobs.New(), jobs.NewJobCommand(), addresses.New(),
		top.New(), web.New(), shell.New(), shell.NewConsole(), provider.New(), uninstall.New())
	cli.AddVersion(root)

	return root
}
