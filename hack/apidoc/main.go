// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
)

const (
	definitions = "deploy/crds"
	reference   = "docs/reference/api.md"
)

func main() {
	if err := run("."); err != nil {
		fmt.Fprintln(os.Stderr, "apidoc:", err)
		os.Exit(1)
	}
}

// run writes the page of the repository in the folder root.
func run(root string) error {
	crds, err := loadCRDs(filepath.Join(root, definitions))
	if err != nil {
		return err
	}

	text, err := renderPage(crds)
	if err != nil {
		return err
	}

	file := filepath.Join(root, reference)
	if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
		return fmt.Errorf("create folder of %s: %w", reference, err)
	}

	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return fmt.Errorf("write %s: %w", reference, err)
	}

	return nil
}
