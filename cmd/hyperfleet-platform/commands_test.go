// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet-platform/root"
	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/test/spelling"
)

// The tests of all commands are in one package, because each test program links nearly all packages.

// writeFile writes a file to a temporary folder and returns its path.
func writeFile(t *testing.T, name, text string) string {
	t.Helper()

	path := filepath.Join(t.TempDir(), name)
	must.Do(t, os.WriteFile(path, []byte(text), 0o600))

	return path
}

func TestFlagsAreSpelledAsPeopleDo(t *testing.T) {
	t.Parallel()

	spelling.CheckFlags(t, root.New())
}

// TestOutputFormats checks the formats of each command with --output.
func TestOutputFormats(t *testing.T) {
	t.Parallel()

	spelling.CheckOutput(t, root.New, map[string][]string{
		"adapter validate":    {"text", "json", "yaml", "rbac"},
		"adapter dry-run":     {"text", "json", "yaml"},
		"adapter config-dump": {"yaml", "json"},
		"sweep":               {"text", "json", "yaml"},
		"version":             {"text", "json", "yaml"},
	})
}
