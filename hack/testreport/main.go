// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Command testreport reads what `go test -json` writes and prints what a person
// wants of it: a line for each package, the output of what failed or was skipped,
// and last the counts, "N passed, N failed". It exits 1 when something failed or
// nothing ran.
package main

import (
	"fmt"
	"os"
)

func main() {
	report := newReport(os.Stdout)
	if err := report.read(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
		os.Exit(1)
	}

	if !report.finish() {
		os.Exit(1)
	}
}
