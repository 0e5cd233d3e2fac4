// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Command forgesim simulates CI platforms for tests and for the demo. It is not part of a release and not
// in any image.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/hyperfleet/hyperfleet/sim/forge/forgesim"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := forgesim.Run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
