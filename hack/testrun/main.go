// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Command testreport reads what `go test -json` writes and prints what a person
// wants of it: a line for each package, the output of what failed or was skipped,
// and last the counts, "N passed, N failed". With -v it prints all output as it comes.
// It exits 1 when something failed or nothing ran.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	verbose := flag.Bool("v", false, "print the output of all tests, as it comes")
	flag.Parse()

	report := newReport(os.Stdout)
	report.verbose = *verbose

	if err := report.read(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
		os.Exit(1)
	}

	if !report.finish() {
		os.Exit(1)
	}
}
