// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Command hyperfleet-platform runs the programs of the fleet platform. Each of them is a subcommand: api,
// sentinel, adapter and sweep.
package main

import (
	"os"

	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet-platform/root"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
)

func main() { os.Exit(cli.Run(root.New(), os.Args[1:])) }
