// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Command bootstrap-service runs in a machine and starts one CI runner for one job (package guest).
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"

	api "github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/cmd/internal/signals"
	"github.com/hyperfleet/hyperfleet/cmd/internal/version"
	"github.com/hyperfleet/hyperfleet/cmd/internal/winservice"
	"github.com/hyperfleet/hyperfleet/guest"
)

func main() {
	os.Exit(winservice.Run("HyperFleetBootstrap", func(ctx context.Context, stdout, stderr io.Writer) int {
		return run(ctx, os.Args[1:], stdout, stderr)
	}))
}

// run returns the exit code: 0 for the phase Finished, 1 for Failed, and 2 for invalid arguments. The service ends when
// ctx ends, or on a signal.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("bootstrap-service", flag.ContinueOnError)
	flags.SetOutput(stderr)
	config := flags.String("config", api.ConfigPath, "configuration file of the runner; the file is deleted after it is read")
	root := flags.String("root", "/", "prefix of all absolute paths; the machine is powered off only if the prefix is /")
	printVersion := flags.Bool("version", false, "print the version and exit")

	switch err := flags.Parse(args); {
	case err != nil:
		return 2
	case *printVersion:
		_, _ = fmt.Fprintln(stdout, version.Read())
		return 0
	case flags.NArg() > 0:
		_, _ = fmt.Fprintf(stderr, "bootstrap-service: unknown argument %q: see --help\n", flags.Arg(0))
		return 2
	}

	ctx, stop := signals.NotifyContext(ctx)
	defer stop()

	opts := guest.OptionsOfMachine(*config, *root, slog.New(slog.NewJSONHandler(stdout, nil)))
	if guest.New(opts).Run(ctx).Phase == api.PhaseFailed {
		return 1
	}
	return 0
}
