// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Command hyperfleet is the control plane and its tools: the operator, the demo, and
// what looks after them.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/adapter"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/cli"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/demo"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/doctor"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/fleetapi"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/hosts"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/jobs"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/operator"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/sentinel"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/sweep"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/version"
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	root := &cobra.Command{
		Use:           "hyperfleet",
		Short:         "One control plane for fleets of machines and clusters",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(
		adapter.New(), operator.New(), fleetapi.New(), demo.New(), doctor.New(), hosts.New(), jobs.New(), jobs.NewOne(), sentinel.New(),
		sweep.New(), version.New(),
	)
	root.SetArgs(args)

	err := root.Execute()
	if err == nil {
		return 0
	}

	if text := err.Error(); text != "" {
		fmt.Fprintln(os.Stderr, "hyperfleet:", text)
	}

	return cli.ExitCode(err)
}
