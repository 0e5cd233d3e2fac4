// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Command pvesim simulates the API of a Proxmox VE cluster.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/hyperfleet/hyperfleet/cmd/internal/signals"
	"github.com/hyperfleet/hyperfleet/sim/pve/cli"
)

func main() {
	ctx, stop := signals.NotifyContext(context.Background())
	err := cli.New().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "pvesim:", err)
		os.Exit(1)
	}
}
