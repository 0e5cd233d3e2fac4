// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
)

const (
	types     = "api/adapter"
	reference = "docs/reference/task-file.md"
)

func main() {
	if err := run("."); err != nil {
		fmt.Fprintln(os.Stderr, "taskdoc:", err)
		os.Exit(1)
	}
}

// run writes the page of the repository in the folder root.
func run(root string) error {
	text, err := renderPage(filepath.Join(root, types))
	if err != nil {
		return err
	}

	if err := os.WriteFile(filepath.Join(root, reference), []byte(text), 0o600); err != nil {
		return fmt.Errorf("write %s: %w", reference, err)
	}

	return nil
}
