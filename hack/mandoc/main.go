// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Command mandoc writes the manual pages of hyperfleet and hyperfleet-platform, one for each command. The pages
// depend only on the flags of mandoc and on the source code. The programs themselves do not link the generator.
package main

import (
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	platform "github.com/hyperfleet/hyperfleet/cmd/hyperfleet-platform/root"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/root"
)

func main() {
	dist := flag.String("dist", "dist/man", "output folder")
	version := flag.String("version", "", "version that the pages show")
	date := flag.String("time", "", "time that the pages show, in RFC 3339")
	flag.Parse()

	if err := run(*dist, *version, *date); err != nil {
		fmt.Fprintln(os.Stderr, "mandoc:", err)
		os.Exit(1)
	}
}

func run(dist, version, date string) error {
	released, err := time.Parse(time.RFC3339, date)
	if err != nil {
		return fmt.Errorf("parse -time: %w", err)
	}

	released = released.UTC()
	header := &doc.GenManHeader{Section: "1", Date: &released, Source: "HyperFleet " + version, Manual: "HyperFleet Manual"}

	if err := os.MkdirAll(dist, 0o750); err != nil {
		return fmt.Errorf("create output folder: %w", err)
	}

	os.Clearenv() // some flags have the value of an environment variable as their default

	for _, program := range []*cobra.Command{root.New(), platform.New()} {
		program.DisableAutoGenTag = true
		program.InitDefaultCompletionCmd()

		if err := doc.GenManTree(program, header, dist); err != nil {
			return fmt.Errorf("write pages of %s: %w", program.Name(), err)
		}
	}

	return nil
}
