// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/hyperfleet/hyperfleet/test/spelling"
)

// The tests of the platform's commands are in one program: each of them links nearly all
// that there is.

// execute runs a command, and gives what it said.
func execute(t *testing.T, cmd *cobra.Command, args ...string) (string, error) {
	t.Helper()

	var out strings.Builder

	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)

	err := cmd.Execute()

	return out.String(), err
}

// file writes a file of the test.
func file(t *testing.T, name, text string) string {
	t.Helper()

	path := filepath.Join(t.TempDir(), name)
	must(t, os.WriteFile(path, []byte(text), 0o600))

	return path
}

func TestFlagsAreSpelledAsPeopleDo(t *testing.T) {
	t.Parallel()

	spelling.Flags(t, command())
}

func must(t testing.TB, err error) {
	t.Helper()

	if err != nil {
		t.Fatal(err)
	}
}
