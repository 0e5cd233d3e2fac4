// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Command hyperfleet-demo runs CI jobs in fresh machines on this computer, on simulated hardware
// and with a simulated CI platform. It is meant for trying out HyperFleet and is not part of a release.
package main

import (
	"os"

	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet-demo/demo"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
)

func main() { os.Exit(cli.Run(demo.New(), os.Args[1:])) }
