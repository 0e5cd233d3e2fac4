// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package spelling

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// CheckOutput fails the test if the formats of --output, by the path of the command below the root, are not
// those of newRoot's commands. The shell must complete the formats, and the error for another format must
// name them.
func CheckOutput(t *testing.T, newRoot func() *cobra.Command, formats map[string][]string) {
	t.Helper()

	var visit func(cmd *cobra.Command, path []string)

	visit = func(cmd *cobra.Command, path []string) {
		for _, below := range cmd.Commands() {
			visit(below, append(slices.Clone(path), below.Name()))
		}

		want, hasFormats := formats[strings.Join(path, " ")]
		if hasFlag := cmd.Flags().Lookup("output") != nil; hasFlag != hasFormats {
			t.Errorf("%s: has --output: %v, has formats: %v", cmd.CommandPath(), hasFlag, hasFormats)
		}

		if hasFormats {
			checkFormats(t, newRoot, path, want)
		}
	}
	visit(newRoot(), nil)
}

func checkFormats(t *testing.T, newRoot func() *cobra.Command, path, formats []string) {
	t.Helper()

	completed, err := Execute(newRoot(), slices.Concat([]string{cobra.ShellCompNoDescRequestCmd}, path, []string{"-o", ""})...)
	if want := strings.Join(formats, "\n") + "\n:4\n"; err != nil || !strings.HasPrefix(completed, want) {
		t.Errorf("%s: the shell completes %q (%v), want %q", path, completed, err, want)
	}

	last := len(formats) - 1
	want := `invalid argument "xml" for "-o, --output" flag: use ` + strings.Join(formats[:last], ", ") + " or " + formats[last]

	if _, err := Execute(newRoot(), append(slices.Clone(path), "-o", "xml")...); err == nil || err.Error() != want {
		t.Errorf("%s -o xml: %v, want %q", path, err, want)
	}
}

// Execute runs a command, and returns its output and its error.
func Execute(cmd *cobra.Command, args ...string) (string, error) {
	var out strings.Builder

	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	err := cmd.Execute()

	return out.String(), err
}
