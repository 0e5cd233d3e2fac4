// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Command hyperfleet is the control plane and its tools: the operator, the demo, and
// what looks after them.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/demo"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/jobs"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/operator"
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
	root.AddCommand(operator.New(), demo.New(), jobs.New(), jobs.NewOne(), version.New())
	root.SetArgs(args)

	err := root.Execute()
	if err == nil {
		return 0
	}

	if text := err.Error(); text != "" {
		fmt.Fprintln(os.Stderr, "hyperfleet:", text)
	}

	if code, ok := jobs.ExitCode(err); ok {
		return code
	}

	return demo.ExitCode(err)
}
