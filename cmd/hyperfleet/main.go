// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Command hyperfleet runs the operator, and has the commands with which people set up, inspect and remove an
// installation.
package main

import (
	"os"

	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/root"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
)

func main() { os.Exit(cli.Run(root.New(), os.Args[1:])) }
