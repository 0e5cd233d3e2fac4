// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Command standin replaces the runners of CI platforms in simulated machines, for tests and for the demo.
// It is not part of a release and not in any image.
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
	code, isKnown := standin.Run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if !isKnown {
		fmt.Fprintln(os.Stderr, "usage: standin PROGRAM ARGUMENTS; forgesim lists the programs")
	}
	os.Exit(code)
}
