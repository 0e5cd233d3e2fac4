// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Command standin stands in for the platforms' runners in simulated machines, for tests and the
// demo. It is no part of the product and is never shipped in an image.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/hyperfleet/hyperfleet/sim/forge/standin"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code, known := standin.Run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if !known {
		fmt.Fprintln(os.Stderr, "usage: standin PROGRAM ARGUMENTS; forgesim says which programs there are")
	}
	os.Exit(code)
}
