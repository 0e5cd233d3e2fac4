// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Command hyperfleet-demo runs the product's main job on one machine, on simulated hardware
// and a simulated CI platform. It is for trying the product out, and no part of a release.
package main

import (
	"os"

	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet-demo/demo"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
)

func main() { os.Exit(cli.Run(demo.New(), os.Args[1:])) }
